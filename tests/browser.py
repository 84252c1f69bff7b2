"""A browser without a window, whichever there is: it opens a page and answers a script."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FOUND = next(filter(None, map(shutil.which, [*_NAMES, "microsoft-edge", "brave-browser"])), None)
needed = pytest.mark.skipif(not FOUND, reason=f"no browser on PATH ({', '.join(_NAMES)})")
_OPTIONS = "--headless --no-sandbox --disable-gpu --disable-background-networking --dump-dom"

# A window has a least width, a frame has not.
_FRAME = """<!DOCTYPE html><html style="color-scheme: light dark"><pre id="told"></pre>
<iframe src="page.html" style="width: WIDTHpx; height: 900px; border: 0"></iframe>
<script>addEventListener("message", (event) => {
  document.getElementById("told").textContent = event.data;
});</script></html>"""


def asked(page: bytes, script: str, folder: Path, width: int = 1280, dark: bool = False):
    """What `script`, the body of an async function run in the page, returns, as JSON.

    `width` is the window's, in pixels; `dark` is what the system prefers.
    """
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.decode())  # its policy would stop the script
    probe = (
        "<script>(async () => { const found = await (async () => {" + script + "})();"
        'parent.postMessage(JSON.stringify(found), "*"); })();</script></body>'
    )
    (folder / "page.html").write_text(text.replace("</body>", probe))
    (folder / "frame.html").write_text(_FRAME.replace("WIDTH", str(width)))
    command = [FOUND, *_OPTIONS.split(), f"--user-data-dir={folder / 'profile'}"]
    command += ["--window-size=1400,900", "--virtual-time-budget=3000"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    command += [(folder / "frame.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return json.loads(unescape(re.search(r'<pre id="told">(.*?)</pre>', shown, re.S)[1]))
