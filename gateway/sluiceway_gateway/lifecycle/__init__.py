"""The end of a channel: draining, closing, idle channels."""
