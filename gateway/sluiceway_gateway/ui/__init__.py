"""The dashboard: a page in the browser, on the public HTTP interface alone."""
