"""A page taken apart: its tags, identifiers and headings."""

from html.parser import HTMLParser

_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")


class Page(HTMLParser):
    """`tags`: all start tags with their attributes; `headings`: (tag, text) in order;
    `empty_headings`: those behind which no text follows before the next of the same or a higher
    rank, or the end of what they stand in.
    """

    def __init__(self, source: str):
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict]] = []
        self.headings: list[tuple[str, str]] = []
        self.empty_headings: list[tuple[str, str]] = []
        self._inside: str | None = None
        self._waiting: list[tuple[str, str]] = []
        self._silent = False
        self.feed(source)
        self._end("h1")

    @property
    def ids(self) -> list[str]:
        """All identifiers."""
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._silent = tag in ("script", "style")
        if tag in _HEADINGS:
            self._end(tag)
            self._inside = tag
            self.headings.append((tag, ""))

    def handle_endtag(self, tag):
        self._silent = False
        if tag == self._inside:
            self._inside = None
            self._waiting.append(self.headings[-1])
        elif tag in ("section", "figure", "details", "main"):
            self._end("h1")

    def handle_data(self, data):
        if self._inside:
            self.headings[-1] = (self._inside, self.headings[-1][1] + data)
        elif data.strip() and not self._silent:
            self._waiting.clear()

    def _end(self, tag: str) -> None:
        """Headings of this rank and below had their last chance."""
        over = [heading for heading in self._waiting if heading[0] >= tag]
        self.empty_headings += over
        self._waiting = [heading for heading in self._waiting if heading not in over]
