"""Nobody sleeps on a socket whose state may have changed: its descriptor would keep silent."""

from __future__ import annotations

import select
from threading import Thread

import pytest

from actors.edges.frames import BEAT_FRAME, Beat, Fin, pack
from runtime.edges.driver.links import Guest, Links

WAIT_S = 10


class Owner:
    def __init__(self):
        self.heard, self.counted, self.answers = [], [], []
        self.links = None

    def from_producer(self, guest, frame):
        self.heard.append(frame)
        self.answers.append(self.links.answer(guest, BEAT_FRAME))

    def from_consumer(self, link, frame):
        self.heard.append(frame)

    def link_up(self, link):
        link.control.append(pack(Fin(1, 2, 3)))
        link.flush()

    def count(self, what, detail):
        self.counted.append((what, detail))

    def rubbish(self, guest, text):
        self.counted.append(text)

    def link_down(self, link): ...

    def room_again(self, link): ...


class Loop:
    """The driver's loop in small: sleeps only when nobody is restless."""

    def __init__(self, net, name):
        self.owner = Owner()
        self.epoll, self.handlers = select.epoll(), {}
        dial = {peer: at for peer, at in net.endpoints.items() if peer != name}
        self.links = self.owner.links = Links(
            net.keys(name), net.endpoints[name], dial, owner=self.owner, watch=self.watch, unwatch=self.unwatch
        )

    def watch(self, fd, handler):
        self.handlers[fd] = handler
        self.epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd):
        del self.handlers[fd]
        self.epoll.unregister(fd)

    def step(self):
        if self.links.restless:
            self.links.work()
        else:
            ready = self.epoll.poll(WAIT_S)
            assert ready, "nobody stirred"
            for fd, _ in ready:
                self.handlers[fd]()

    def close(self):
        self.links.close()
        self.epoll.close()


@pytest.fixture
def loop(net):
    loop = Loop(net, "b")
    net.closing.append(loop)
    return loop


def test_after_an_answer_the_socket_is_looked_at_again(loop, net):
    outlaw = net.outlaw("a", "b")
    saying = Thread(target=outlaw.say, args=(pack(Fin(1, 2, 3)),))  # waits for the loop to let it in
    saying.start()
    while not loop.owner.heard:
        loop.step()
    saying.join()
    assert loop.owner.answers == [True]
    assert loop.links.restless
    loop.links.work()
    assert not loop.links.restless
    assert outlaw.hear(Beat) == Beat()


def test_after_an_answer_that_failed_the_socket_is_looked_at_again(loop):
    while loop.links.restless:
        loop.links.work()
    gone = Guest("a", route=b"\0gone", connections={b"\0gone": None})
    assert not loop.links.answer(gone, BEAT_FRAME)
    assert gone.route is None
    assert loop.links.restless
