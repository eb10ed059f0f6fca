"""The peers as selectors see them."""

from __future__ import annotations

from bb_edge.engine.net.peer_state import PeerStates
from bb_edge.ir.ids import PeerId
from bb_edge.roles.errors import ComponentError


class PeerView:
    """The peers as selectors see them: those that are up and not failing, the node itself where its own
    presence lists the class, and, once per back-off, others: who is never asked never answers again. Where
    peers are greeted (`Unheard`), those of which nothing has come yet are not among them.

    A class of which the node hears nothing is refused: nobody would be there, whoever is.
    """

    __slots__ = ("_states",)

    def __init__(self, states: PeerStates) -> None:
        self._states = states

    def up_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        states = self._of(peer_class)
        up = states.up_peers(peer_class)
        if states.failing:
            up = tuple(peer for peer in up if states.failing.may_ask(peer))
        mute, strangers = states.presences.unreachable(peer_class), states.programs.strangers
        again = [peer for peer in mute if peer not in strangers and states.probe(peer)]
        seen = tuple(sorted((*up, *again))) if again else up
        return states.unheard.visible(seen) if states.unheard.are_greeted else seen

    def known_peers(self, peer_class: str) -> tuple[PeerId, ...]:
        states = self._of(peer_class)
        known = states.members(peer_class, states.presences.known_peers(peer_class))
        return states.unheard.visible(known) if states.unheard.are_greeted else known

    def resting(self, peer_class: str) -> int:
        failing, unheard = self._states.failing, self._states.unheard
        if not failing:
            return 0
        up = self._states.up_peers(peer_class)
        return sum(not failing.may_ask(peer) for peer in (unheard.visible(up) if unheard.are_greeted else up))

    def _of(self, peer_class: str) -> PeerStates:
        states = self._states
        if states.hears is not None and peer_class not in states.hears:
            heard = ", ".join(states.hears) or "no class"
            raise ComponentError(
                f"the node hears nothing of class {peer_class}, but of {heard}",
                "ctx.peers",
                f'name the class where the slot is declared: ProtocolSlot(…, peer_class="{peer_class}")',
            )
        return states
