"""Environment variables of a gateway and of a client."""

from sluiceway_gateway.settings import CLIENTS, PREFIX, SECRETS, Settings

GATEWAY = {PREFIX + name.upper() for name in Settings.model_fields} | {
    f"{PREFIX}{name.upper()}_FILE" for name in SECRETS
}
CLIENT = {PREFIX + name for name in CLIENTS}
