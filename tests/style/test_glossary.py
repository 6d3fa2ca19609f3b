"""The vocabulary: words that the glossary replaces must not come back."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, newcomers
from tests.style.test_layers import CODE

# Names that no code defines or uses any more. Common English words are left out: `row`, `over`, `done`.
IDENTIFIERS = frozenset(
    re.findall(
        r"\w+",
        """
    Course Look Seen Kept Memories CheckpointKeeper Laps Aside Allowance Logbook Journal Meeting Invitation
    Outcome RoundWork StopWatch StopEar Pulse Snapshot DriverRun Meter Spent Shipment Shipped Shelf Verdict
    Everything Without Assembly GangEstimator MappedEstimator CheckedParams Nameless MemberFailed MemberLost
    MemberProcess MemberLogs run_member checkpointEvery validationCol clipNorm clip_norm slotWait slot_wait
    elasticWait elastic_wait timeBudget time_budget allowPlaintext allow_plaintext featureSubset takes_steps
    has_loss travelling spare_imports steadily obituary let_go with_unit_masses as_packed
    """,
    )
)
# Names that are common English words: they may stand in prose.
PLAIN_WORDS = frozenset({"Course", "Everything", "Kept", "Look", "Outcome", "Seen", "Spent", "Without"})
PHRASES = (
    r"\bto the bit\b",
    r"\bthe same bits\b",
    r"\brows? held out\b",
    r"\bheld-out rows?\b",
    r"\bgoes on from\b",
    r"\bgo on from\b",
    r"\bwhoever\b",
    r"\bof no use\b",
    r"\bmakes no use of\b",
    r"\bis refused\b",
    r"\bare refused\b",
    r"\bmembers? of (?:a|the|its) gang\b",
)
PYTHON = sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
PAGES = [ROOT / page for page in (*newcomers(), "CONTRIBUTING.md") if page != "docs/glossary.md"]


def replaced(text: str) -> list[str]:
    """The words and phrases in a text that the glossary replaces."""
    text = " ".join(text.split())
    words = set(re.findall(r"[A-Za-z_]\w+", text)) & (IDENTIFIERS - PLAIN_WORDS)
    return [*sorted(words), *(match[0] for pattern in PHRASES for match in re.finditer(pattern, text))]


@pytest.mark.parametrize("path", [*PYTHON, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_replaced_word(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
        assert not IDENTIFIERS & {token.string for token in tokens if token.type == tokenize.NAME}
        comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
        constants = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
        source = "\n".join([*comments, *(value for value in constants if isinstance(value, str))])
    assert replaced(source) == []


def test_replaced_words_are_found() -> None:
    assert replaced("a Logbook is\nrefused of no  use") == ["Logbook", "of no use", "is refused"]
