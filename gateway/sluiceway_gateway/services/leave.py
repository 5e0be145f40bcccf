"""Who asks, and whether they may, where many ask for something in one transaction."""

from collections.abc import Iterable, Mapping

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.auth.service import Credentials, Tokens
from sluiceway_gateway.db.engine import ReadTransaction
from sluiceway_gateway.domain.errors import SluicewayGatewayError

Asker = Principal | Credentials
"""Who asks, or what they brought to say so."""
Holders = Mapping[Asker, Principal | SluicewayGatewayError]


def holders(tokens: Tokens, tx: ReadTransaction, askers: Iterable[Asker]) -> Holders:
    """Return for each who it is, or why that cannot be said."""
    asking = set(askers)
    found: dict[Asker, Principal | SluicewayGatewayError] = {}
    found |= {each: each for each in asking if isinstance(each, Principal)}
    brought = {each for each in asking if isinstance(each, Credentials)}
    for credentials, who in tokens.principals(tx, brought).items():
        found[credentials] = who
    return found


def holder(tokens: Tokens, tx: ReadTransaction, asker: Asker) -> Principal:
    """Return who it is; raises Unauthenticated."""
    found = holders(tokens, tx, [asker])[asker]
    if isinstance(found, SluicewayGatewayError):
        raise found
    return found


def permitted(
    holder: Principal | SluicewayGatewayError, channel: str, *actions: Action
) -> Principal | SluicewayGatewayError:
    """Return who asks if they may do all of that to the channel, else what stands against it."""
    if isinstance(holder, SluicewayGatewayError):
        return holder
    try:
        for each in actions:
            holder.require(each, channel)
    except SluicewayGatewayError as error:
        return error
    return holder
