"""The rows of a command, from a path, a table or a query."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, NumericType

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.fields import CheckedFields
from sparkdl.spark.columns import col
from sparkdl.spark.session import qualify


@dataclass(frozen=True)
class Data(CheckedFields):
    """Rows that Spark reads from exactly one of path, table and query.

    Args:
        path: a file or folder, on any filesystem that Spark reads.
        table: a table or view of the catalog, for example db.name or catalog.db.name.
        query: SQL whose result is read.
        format: of path; parquet, orc, csv, json or another that Spark knows.
        schema: of path; columns and types as in CREATE TABLE, for example "x double, label int". Without it Spark takes
            the file's schema, or, for csv, strings unless options has inferSchema.
        options: the reader's options, for example {header: true} for csv.
        vectors: columns of arrays of numbers to convert to vectors, which estimators of pyspark.ml read.

    Raises:
        InvalidInput: not exactly one of path, table and query is given, or one of them ignores a given setting.
    """

    path: str | None = None
    table: str | None = None
    query: str | None = None
    format: str = "parquet"
    schema: str | None = None
    options: dict[str, str | int | float | bool] = field(default_factory=dict)
    vectors: list[str] = field(default_factory=list)

    def _check(self) -> None:
        sources = [name for name in ("path", "table", "query") if getattr(self, name) is not None]
        if len(sources) != 1:
            origin = " and ".join(sources) or "nowhere"
            raise InvalidInput(f"rows come from {origin}; expected exactly one of path, table and query.")
        ignored = {"path": "", "table": "format schema", "query": "format schema options"}[sources[0]]
        for name in ignored.split():
            if getattr(self, name) not in ("parquet", None, {}):
                raise InvalidInput(f"{name} is ignored if rows come from a {sources[0]}; leave it out.")

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows as a DataFrame, which Spark reads lazily.

        Raises:
            InvalidInput: a column of vectors is missing, or holds no arrays of numbers.
        """
        reader = spark.read.options(**self.options)
        if self.query is not None:
            rows = spark.sql(self.query)
        elif self.table is not None:
            rows = reader.table(self.table)
        else:
            reader = reader if self.schema is None else reader.schema(self.schema)
            rows = reader.format(self.format).load(self.path)
        for name in self.vectors:
            kind = rows.schema[name].dataType if name in rows.columns else None
            if not (isinstance(kind, ArrayType) and isinstance(kind.elementType, NumericType)):
                state = "missing" if kind is None else f"of type {kind.simpleString()}"
                raise InvalidInput(f"vectors names {name!r}, which is {state}; expected a column of arrays of numbers.")
            rows = rows.withColumn(name, array_to_vector(col(name).cast("array<double>")))
        return rows


def check_output(spark: SparkSession, output: str | None, *, overwrite: bool) -> None:
    """Check, before the work begins, that its result can be written.

    Raises:
        InvalidInput: output exists, and overwrite is false.
    """
    if output is not None and not overwrite and files.exists(qualify(spark, output)):
        raise InvalidInput(f"output {output} exists; set overwrite to true to replace it.")
