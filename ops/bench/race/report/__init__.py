"""Reports of a race: tables as text and Markdown, a picture, and a page with both."""

from ops.bench.race.report.page import write_html
from ops.bench.race.report.pictures import write_png
from ops.bench.race.report.table import markdown_text, table_text

__all__ = ["markdown_text", "table_text", "write_html", "write_png"]
