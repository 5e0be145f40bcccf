"""Messages of a channel as people look at them: a few, read and written by hand."""
