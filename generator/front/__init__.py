"""From a reference file to graphs of its forward, and what was compiled into them."""
