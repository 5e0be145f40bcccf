"""Java for processes that live for seconds: optimising would cost more than it saves."""

FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
JAVA = {"JAVA_TOOL_OPTIONS": FLAGS}
