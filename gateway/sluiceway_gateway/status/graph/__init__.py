"""Graph: the jobs that write and read a channel, and the channels around it."""
