"""Messages of a channel for inspection: a few, read and written by hand."""
