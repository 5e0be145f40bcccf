"""What error reporters see of a failure below: nothing, where it would show secrets."""

__all__ = ["forget_frames"]


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of a foreign failure, and of what it came of.

    Reporters render the locals of every frame. Those of HTTP's have the token, as it was sent;
    those of a parser what the gateway answered, and those of Kafka's clients how to get in.
    """
    chain = [error]
    for each in chain:
        each.__traceback__ = None
        chain += [it for it in (each.__cause__, each.__context__) if it and it not in chain]
