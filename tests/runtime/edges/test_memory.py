"""Ring memory: sealed, disjoint, returned for real, and never released under somebody who looks at it."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.actor import AskFailed
from messages.base import Address
from messages.edge import RingLayout
from messages.edge_ports import DropArena, EraseRing, FormatRing, RingRef
from messages.ports import PortRefusal
from messages.system import Done, GetState
from runtime.edges.memory import MemoryFault, NodeMemory
from runtime.edges.ring import HEADER_BYTES, RingConsumer, RingProducer, check_header
from runtime.kernel.live import LiveWorld
from runtime.ports.memory import Memory

SIZE = 1024 * 1024
PAGE = mmap.PAGESIZE


def ref(ring=1, start=0, data=3 * PAGE, *, arena="a", generation=5, alignment=PAGE):
    data_offset = -(-(start + HEADER_BYTES) // alignment) * alignment
    layout = RingLayout(
        start_offset=start, header_offset=start, data_offset=data_offset, end_offset=data_offset + data,
        data_bytes=data, alignment=alignment,
    )  # fmt: skip
    return RingRef(arena=arena, ring_id=ring, generation=generation, layout=layout)


@pytest.fixture
def memory() -> Iterator[NodeMemory]:
    made = NodeMemory()
    yield made
    made.close()


def fault_of(call, *arguments) -> MemoryFault:
    with pytest.raises(MemoryFault) as caught:
        call(*arguments)
    return caught.value


def descriptors() -> list[str]:
    gc.collect()  # what other tests left is not ours
    return sorted(os.listdir("/proc/self/fd"))


def mappings() -> int:
    return sum("memfd:sennit-" in line for line in Path("/proc/self/maps").read_text().splitlines())


def taken(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def test_a_ring_is_laid_out_where_the_lease_says_and_found_by_its_id(memory):
    ring = memory.format_ring(ref(ring=7, start=PAGE, generation=9), SIZE)
    assert memory.ring(7) is ring
    assert (ring.arena, ring.generation, ring.capacity) == ("a", 9, 3 * PAGE)
    check_header(ring.header, 3 * PAGE, 9)
    assert (len(ring.header), len(ring.data)) == (HEADER_BYTES, ring.capacity)
    ring.data[:4] = b"here"
    assert os.pread(ring.arena_fd, 4, ring.layout.data_offset) == b"here"
    assert os.pread(ring.arena_fd, 4, ring.layout.header_offset) == b"SWRG"
    assert os.fstat(ring.arena_fd).st_size == SIZE


def test_bytes_pass_between_the_mapping_and_one_made_from_a_passed_descriptor(memory):
    ring = memory.format_ring(ref(start=2 * PAGE), SIZE)
    passed = [os.dup(fd) for fd in (ring.arena_fd, ring.data_fd, ring.space_fd)]
    with mmap.mmap(passed[0], 4 * PAGE, offset=2 * PAGE) as theirs:
        view = memoryview(theirs)
        near = RingProducer(ring.header, ring.data, ring.capacity, 5, data_fd=ring.data_fd, space_fd=ring.space_fd)
        far = RingConsumer(
            view[:HEADER_BYTES], view[PAGE : 4 * PAGE], ring.capacity, 5, data_fd=passed[1], space_fd=passed[2]
        )
        near.write(0, b"through shared memory")
        near.commit(21)
        assert far.readable() == 21
        assert bytes(far.spans(0, 21)[0]) == b"through shared memory"
        far.consume(21)
        assert near.free() == ring.capacity
        near.release()
        far.release()
        view.release()
    for descriptor in passed:
        os.close(descriptor)


@pytest.mark.parametrize("size", [0, PAGE, SIZE - 1, SIZE + 1, 2 * SIZE])
def test_a_workload_cannot_resize_an_arena_and_the_process_lives(memory, size):
    ring = memory.format_ring(ref(), SIZE)
    code = (
        "import os, sys\n"
        "try: os.ftruncate(int(sys.argv[1]), int(sys.argv[2]))\n"
        "except OSError as error: print(error.errno == 1)"
    )
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(ring.arena_fd), str(size)],
        pass_fds=[ring.arena_fd], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == "True\n", said
    ring.data[-1] = 1  # would be the end of this process, had the last page gone
    assert os.fstat(ring.arena_fd).st_size == SIZE


def test_a_workload_cannot_seal_an_arena_against_its_node(memory):
    """`F_SEAL_FUTURE_WRITE` would keep later rings from being mapped."""
    ring = memory.format_ring(ref(), SIZE)
    for seal in (0x0008, 0x0010):
        with pytest.raises(PermissionError):
            fcntl.fcntl(ring.arena_fd, fcntl.F_ADD_SEALS, seal)
    memory.format_ring(ref(ring=2, start=8 * PAGE), SIZE)


def test_workloads_never_share_an_arena(memory):
    one, two = memory.format_ring(ref(ring=1, arena="a"), SIZE), memory.format_ring(ref(ring=2, arena="b"), SIZE)
    one.data[:3] = b"one"
    assert not os.path.sameopenfile(one.arena_fd, two.arena_fd)
    assert bytes(two.data[:3]) == bytes(3)
    third = memory.format_ring(ref(ring=3, start=8 * PAGE, arena="a"), SIZE)
    assert third.arena_fd == one.arena_fd


def test_an_arena_takes_memory_for_its_rings_only_and_an_erased_ring_gives_all_of_it_back(memory):
    kept = memory.format_ring(ref(ring=1, data=PAGE), SIZE)
    fd = kept.arena_fd
    before = taken(fd)
    ring = memory.format_ring(ref(ring=2, start=4 * PAGE, data=64 * PAGE), SIZE)
    assert taken(fd) - before == 65 * PAGE, "the memory is there before it is written to"
    ring.data[:] = b"\xff" * ring.capacity
    assert taken(fd) - before == 65 * PAGE
    del ring
    memory.erase_ring(2)
    assert taken(fd) == before
    with pytest.raises(KeyError):
        memory.ring(2)
    check_header(kept.header, kept.capacity, 5)


@given(
    start=st.integers(0, 40).map(lambda n: n * 64),
    data=st.integers(1, 4 * PAGE),
    gap=st.integers(0, 8).map(lambda n: n * 64),
)
@settings(max_examples=40, deadline=None)
def test_a_later_ring_finds_zeros_and_its_neighbours_what_they_wrote(start, data, gap):
    memory = NodeMemory()
    first = ref(ring=1, start=start, data=data, alignment=64)
    after = -(-(first.layout.end_offset + gap) // 64) * 64
    middle = ref(ring=2, start=after, data=data, alignment=64)
    last = ref(ring=3, start=-(-middle.layout.end_offset // 64) * 64, data=data, alignment=64)
    rings = [memory.format_ring(one, SIZE) for one in (first, middle, last)]
    for ring in rings:
        ring.data[:] = b"\xee" * data
    fd, layout = rings[1].arena_fd, middle.layout
    memory.erase_ring(2)
    size = layout.end_offset - layout.start_offset
    assert os.pread(fd, size, layout.start_offset) == bytes(size)
    for ring in (rings[0], rings[2]):
        check_header(ring.header, data, 5)
        assert bytes(ring.data) == b"\xee" * data
    again = memory.format_ring(ref(ring=4, start=layout.start_offset, data=data, alignment=64), SIZE)
    assert bytes(again.data) == bytes(data)
    memory.close()


def test_nothing_is_released_under_somebody_who_looks_at_it(memory):
    """Promise 5: the mapping does not close while a view of it is left, and then no page goes back."""
    ring = memory.format_ring(ref(), SIZE)
    ring.data[:4] = b"kept"
    looking = ring.data[:4]
    assert fault_of(memory.erase_ring, 1).code is PortRefusal.INVALID_STATE
    assert memory.ring(1) is ring
    assert bytes(looking) == bytes(ring.data[:4]) == b"kept"
    check_header(ring.header, ring.capacity, 5)
    os.eventfd_write(ring.data_fd, 1)
    looking.release()
    memory.erase_ring(1)
    with pytest.raises(KeyError):
        memory.ring(1)


def test_no_descriptor_and_no_mapping_is_left_after_many_rounds(memory):
    memory.format_ring(ref(ring=1, start=64 * PAGE), SIZE)
    before = descriptors(), mappings()
    for number in range(2, 202):
        memory.format_ring(ref(ring=number, data=(number % 9 + 1) * 1000), SIZE)
        memory.erase_ring(number)
    gc.collect()
    assert (descriptors(), mappings()) == before
    memory.erase_ring(1)
    memory.drop_arena("a")
    assert len(descriptors()) == len(before[0]) - 5, "the arena and its mapping, the ring's mapping and its eventfds"


def test_close_leaves_no_descriptor():
    before = descriptors()
    memory = NodeMemory()
    for number in range(1, 9):
        memory.format_ring(ref(ring=number, arena=f"a{number % 3}", start=number * 8 * PAGE), SIZE)
    held = memory.ring(1).data[:1]
    memory.close()
    held.release()
    gc.collect()
    assert descriptors() == before


@pytest.mark.parametrize(
    ("second", "code"),
    [
        (ref(ring=1, start=64 * PAGE), PortRefusal.EXISTS),
        (ref(ring=1, arena="b"), PortRefusal.EXISTS),
        (ref(ring=2), PortRefusal.EXISTS),
        (ref(ring=2, start=2 * PAGE, data=1), PortRefusal.EXISTS),
        (ref(ring=2, start=3 * PAGE + 64, data=1, alignment=64), PortRefusal.EXISTS),
        (ref(ring=2, start=SIZE - PAGE), PortRefusal.INVALID),
        (ref(ring=2, start=SIZE), PortRefusal.INVALID),
        (ref(ring=2, start=8 * PAGE, data=0), PortRefusal.INVALID),
        (ref(ring=2, start=8 * PAGE, generation=0), PortRefusal.INVALID),
        (ref(ring=2, start=8 * PAGE, generation=2**64), PortRefusal.INVALID),
        (ref(ring=2, start=8 * PAGE + 4, alignment=1), PortRefusal.INVALID),
    ],
    ids=[
        "same id elsewhere", "same id in another arena", "same range", "data in data", "range in range",
        "end outside", "start outside", "no data", "no generation", "generation too large", "header not aligned",
    ],
)  # fmt: skip
def test_a_ring_that_cannot_be_is_refused_and_changes_nothing(memory, second, code):
    ring = memory.format_ring(ref(), SIZE)
    before, size = descriptors(), taken(ring.arena_fd)
    assert fault_of(memory.format_ring, second, SIZE).code is code
    assert (descriptors(), taken(ring.arena_fd)) == (before, size)
    assert memory.ring(1) is ring
    memory.format_ring(ref(ring=2, start=8 * PAGE), SIZE)


@pytest.mark.parametrize(
    "change",
    [
        {"start_offset": 8},
        {"start_offset": -PAGE},
        {"header_offset": PAGE},
        {"header_offset": PAGE - HEADER_BYTES + 8},
        {"data_offset": HEADER_BYTES},
        {"data_bytes": 3 * PAGE - 1},
        {"end_offset": 3 * PAGE},
        {"end_offset": 2**64 - 1, "data_bytes": 2**64 - 1 - PAGE},
    ],
)
def test_a_layout_that_contradicts_itself_is_refused_and_makes_no_arena(memory, change):
    before = descriptors()
    layout = msgspec.structs.replace(ref().layout, **change)
    odd = RingRef(arena="a", ring_id=1, generation=5, layout=layout)
    assert fault_of(memory.format_ring, odd, SIZE).code is PortRefusal.INVALID
    assert (memory.rows(), descriptors()) == ([], before)


def test_an_arena_keeps_its_size(memory):
    memory.format_ring(ref(), SIZE)
    assert fault_of(memory.format_ring, ref(ring=2, start=8 * PAGE), 2 * SIZE).code is PortRefusal.MISMATCH


@pytest.mark.parametrize("size", [0, -1, 2**63, 2**70])
def test_a_size_that_no_arena_can_have_is_refused(memory, size):
    assert fault_of(memory.format_ring, ref(), size).code is PortRefusal.INVALID
    assert memory.rows() == []


def test_what_is_not_there_is_erased_and_dropped_already(memory):
    memory.erase_ring(9)
    memory.drop_arena("nobody")
    memory.format_ring(ref(), SIZE)
    memory.erase_ring(1)
    memory.erase_ring(1)
    memory.drop_arena("a")
    memory.drop_arena("a")
    assert memory.rows() == []


def test_an_arena_with_rings_is_not_dropped(memory):
    ring = memory.format_ring(ref(), SIZE)
    fault = fault_of(memory.drop_arena, "a")
    assert fault.code is PortRefusal.INVALID_STATE
    assert "rings 1" in fault.reason
    ring.data[0] = 1


@contextmanager
def descriptors_limited_to(more: int) -> Iterator[None]:
    """Fill the holes, then let this process open `more` descriptors and no others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, descriptors()))
    filler = [0]
    try:
        while filler[-1] <= highest:
            filler.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        resource.setrlimit(resource.RLIMIT_NOFILE, (filler[-1] + 1 + more, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in filler[1:]:
            os.close(descriptor)


@pytest.mark.parametrize("room", range(5))
def test_without_descriptors_a_ring_is_refused_and_nothing_is_left(room):
    before, memory = descriptors(), NodeMemory()
    with descriptors_limited_to(room):
        fault = fault_of(memory.format_ring, ref(), SIZE)
    assert fault.code is PortRefusal.NO_DESCRIPTORS
    assert (descriptors(), memory.rows()) == (before, [])
    memory.format_ring(ref(), SIZE)
    memory.close()


def test_without_memory_a_ring_is_refused_and_nothing_is_left(memory):
    """The address space is what a test can make scarce."""
    ring = memory.format_ring(ref(), SIZE)
    before, size = descriptors(), taken(ring.arena_fd)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * PAGE
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 1024 * 1024, hard))
        fault = fault_of(memory.format_ring, ref(ring=2, arena="b"), 1 << 40)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert fault.code is PortRefusal.NO_MEMORY
    assert (descriptors(), taken(ring.arena_fd)) == (before, size)


def test_memory_that_cannot_be_had_is_an_error_before_the_ring_is_there(memory, monkeypatch):
    """And no SIGBUS at the first write to it."""
    kept = memory.format_ring(ref(), SIZE)
    before, size = descriptors(), taken(kept.arena_fd)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        assert fault_of(memory.format_ring, ref(ring=2, start=8 * PAGE), SIZE).code is PortRefusal.NO_MEMORY
    assert (descriptors(), taken(kept.arena_fd)) == (before, size)


FILL = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (64 << 20, 64 << 20))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
os.posix_fallocate(int(sys.argv[1]), 0, int(sys.argv[2]))
"""


def fill(ring) -> None:
    """As a workload can, whatever its limits of address space and of file size."""
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", FILL, str(ring.arena_fd), str(SIZE)], pass_fds=[ring.arena_fd], check=True
    )


def test_memory_that_a_workload_takes_where_no_ring_lies_is_taken_away(memory):
    rings = [memory.format_ring(ref(ring=n, start=start * PAGE), SIZE) for n, start in ((1, 0), (2, 8), (3, 12))]
    other = memory.format_ring(ref(ring=4, arena="b"), SIZE)
    for ring in (*rings, other):
        ring.data[:] = bytes([ring.ring_id]) * ring.capacity
    before = taken(rings[0].arena_fd)
    assert memory.reclaim() == {}
    fill(rings[0])
    assert taken(rings[0].arena_fd) == SIZE, "all of the budget, by one workload"
    assert memory.reclaim() == {"a": SIZE - before}
    assert taken(rings[0].arena_fd) == before
    assert [row["reclaimed_bytes"] for row in memory.rows()] == [SIZE - before, 0]
    for ring in (*rings, other):
        assert bytes(ring.data) == bytes([ring.ring_id]) * ring.capacity
        check_header(ring.header, ring.capacity, ring.generation)


@pytest.mark.parametrize("start", [0, 100 * 8, PAGE + 64])
def test_reclaiming_leaves_every_byte_of_a_ring_that_shares_its_pages(memory, start):
    one = memory.format_ring(ref(ring=1, start=start, data=1000, alignment=8), SIZE)
    two = memory.format_ring(ref(ring=2, start=one.layout.end_offset, data=9000, alignment=8), SIZE)
    for ring in (one, two):
        ring.data[:] = bytes([ring.ring_id]) * ring.capacity
    fill(one)
    assert memory.reclaim()
    for ring in (one, two):
        assert bytes(ring.data) == bytes([ring.ring_id]) * ring.capacity
        check_header(ring.header, ring.capacity, ring.generation)


def test_a_dropped_arena_takes_no_memory_though_a_workload_keeps_it(memory):
    ring = memory.format_ring(ref(), SIZE)
    fill(ring)
    kept = os.dup(ring.arena_fd)
    memory.erase_ring(1)
    memory.drop_arena("a")
    assert taken(kept) == 0
    os.close(kept)


def test_the_port_tells_who_takes_memory_that_no_ring_has():
    logged, told = [], Event()

    def log(level, _, text, fields):
        logged.append((level, text, fields))
        told.set()

    world, memory = LiveWorld("shed.edges", log), NodeMemory()
    fill(memory.format_ring(ref(), SIZE))
    world.spawn(Address("shed.edges/memory"), lambda: Memory(memory, reclaim_s=0.01))
    assert told.wait(10)
    ended = Event()
    world.on_end = lambda *_: ended.set()
    world.close()
    assert ended.wait(10)
    assert logged[0][0] == "warning"
    assert logged[0][2]["instance"] == "a"
    assert logged[0][2]["reclaimed_bytes"] == SIZE - 4 * PAGE


def test_the_port_answers_refuses_with_codes_and_closes_everything_at_its_end():
    before = descriptors()
    world = LiveWorld("shed.edges", lambda *_: None)
    port, memory = Address("shed.edges/memory"), NodeMemory()
    world.spawn(port, lambda: Memory(memory))

    def ask(request):
        return world.main.ask(port, request, 10.0)

    assert ask(FormatRing(ring=ref(), size_bytes=SIZE)) == Done()
    refused = refusal_of(lambda: ask(FormatRing(ring=ref(), size_bytes=SIZE)))
    assert refused == (PortRefusal.EXISTS.value, "ring 1 is laid out already, in a")
    assert refusal_of(lambda: ask(DropArena(arena="a")))[0] == PortRefusal.INVALID_STATE.value
    [row] = ask(GetState()).state
    assert (row["arena"], row["rings"], row["resident_bytes"]) == ("a", [1], 4 * PAGE)
    assert ask(EraseRing(ring_id=1)) == ask(EraseRing(ring_id=1)) == Done()
    assert ask(DropArena(arena="a")) == Done()
    assert ask(FormatRing(ring=ref(ring=2), size_bytes=SIZE)) == Done()
    ended = Event()
    world.on_end = lambda *_: ended.set()
    world.close()
    assert ended.wait(10)
    assert memory.rows() == []
    gc.collect()
    assert descriptors() == before


def refusal_of(call) -> tuple[str, str]:
    with pytest.raises(AskFailed) as caught:
        call()
    return caught.value.code, caught.value.reason
