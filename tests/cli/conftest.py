"""The browser of the report's tests, for the test of the command that writes it."""

from tests.telemetry.html.conftest import browser as browser
