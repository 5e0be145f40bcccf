"""Groups of readers and writers: membership, size, partition assignment."""
