"""The console: runs, what-if, fabric and cluster in a browser. Pages are files in `static`; answers come from below."""
