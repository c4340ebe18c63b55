/* A workload in C that reads one edge at a time, after docs/edges.md: no library but the C library.
 *
 * It prints a line for each ring when it lets go of it: objects, payload bytes, FNV-1a of all payloads, last object id.
 * Exit 0 when its channel ends, 1 when something is not as the document says. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rings are little-endian"
#endif

enum { RING_HEADER = 128, RECORD_HEADER = 40, PACKET = 4096, MAX_FDS = 8 };

struct record_header {
    char magic[4];
    uint16_t version, length;
    uint64_t object_id, sequence, extent;
    uint32_t flags, reserved;
};
_Static_assert(sizeof(struct record_header) == RECORD_HEADER, "no padding");

struct ring {
    uint64_t number, capacity, max_extent, alignment;
    uint64_t committed, consumed; /* our own cursors: totals in bytes */
    uint64_t sequence, objects, bytes, checksum, last_object;
    unsigned char *map, *header;
    const unsigned char *data;
    size_t map_bytes;
    int data_fd, space_fd, mapped, faulted, ending;
};

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

/* One packet and the descriptors with it; the length, 0 at the end of the socket. */
static size_t take(int from, char *text, int *fds, int *count) {
    union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(int) * MAX_FDS)]; } control;
    struct iovec span = {text, PACKET};
    struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno != ECONNRESET) die("recvmsg");
    *count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); got > 0 && c; c = CMSG_NXTHDR(&message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            *count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(fds, CMSG_DATA(c), sizeof(int) * (size_t)*count);
        }
    text[got > 0 ? got : 0] = 0;
    return got > 0 ? (size_t)got : 0;
}

/* The node writes plain JSON: a member is found by its name, which no value of ours can contain in quotes. */
static uint64_t number(const char *json, const char *name) {
    char key[32];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(json, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static int says(const char *json, const char *what) {
    char pattern[64];
    snprintf(pattern, sizeof pattern, "\"do\":\"%s\"", what);
    if (strstr(json, pattern)) return 1;
    snprintf(pattern, sizeof pattern, "\"do\": \"%s\"", what);
    return strstr(json, pattern) != NULL;
}

static void tell(int channel, const char *did, uint64_t ring, const char *code, const char *text) {
    char line[512];
    int length = code ? snprintf(line, sizeof line, "{\"did\":\"%s\",\"ring\":%" PRIu64 ",\"code\":\"%s\",\"text\":\"%s\"}",
                                 did, ring, code, text)
                      : snprintf(line, sizeof line, "{\"did\":\"%s\",\"ring\":%" PRIu64 "}", did, ring);
    if (send(channel, line, (size_t)length, MSG_NOSIGNAL) < 0 && errno != EPIPE) die("send");
}

static void fault(int channel, struct ring *ring, const char *code, const char *text) {
    ring->faulted = 1; /* no cursor moves after this; the node will uninstall it */
    tell(channel, "fault", ring->number, code, text);
}

static int header_changed(const struct ring *ring, uint64_t generation) {
    uint64_t capacity, found;
    memcpy(&capacity, ring->header + 8, 8);
    memcpy(&found, ring->header + 16, 8);
    return memcmp(ring->header, "SWRG\1\0\0\0", 8) != 0 || capacity != ring->capacity || found != generation;
}

static void install(int channel, const char *json, const int *fds, int count, struct ring *ring) {
    uint64_t asked = number(json, "ring");
    if (ring->mapped && asked == ring->number) {
        for (int i = 0; i < count; i++) close(fds[i]);
        tell(channel, "installed", asked, NULL, NULL);
        return;
    }
    if (count != 3 || ring->mapped || !strstr(json, "ingress")) {
        for (int i = 0; i < count; i++) close(fds[i]);
        tell(channel, "refused", asked, "worker_refused", "this program reads one ring at a time");
        return;
    }
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = number(json, "offset") / page * page;
    *ring = (struct ring){.number = asked, .capacity = number(json, "capacity"), .max_extent = number(json, "max_extent"),
                          .alignment = number(json, "alignment"), .checksum = 14695981039346656037u,
                          .data_fd = fds[1], .space_fd = fds[2]};
    ring->map_bytes = (size_t)(number(json, "end") - start);
    ring->map = mmap(NULL, ring->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], (off_t)start);
    if (ring->map == MAP_FAILED) die("mmap");
    close(fds[0]); /* the mapping stays */
    ring->header = ring->map + (number(json, "header") - start);
    ring->data = ring->map + (number(json, "data") - start);
    ring->mapped = 1;
    if (header_changed(ring, number(json, "generation"))) {
        munmap(ring->map, ring->map_bytes);
        close(ring->data_fd), close(ring->space_fd);
        ring->mapped = 0;
        tell(channel, "refused", asked, "ring_header_changed", "the header is of another ring");
        return;
    }
    tell(channel, "installed", asked, NULL, NULL);
}

static void let_go(int channel, struct ring *ring) {
    printf("objects=%" PRIu64 " bytes=%" PRIu64 " checksum=%016" PRIx64 " last=%" PRIu64 "\n", ring->objects, ring->bytes,
           ring->checksum, ring->last_object);
    fflush(stdout);
    munmap(ring->map, ring->map_bytes);
    close(ring->data_fd), close(ring->space_fd);
    ring->mapped = 0;
    tell(channel, "quiesced", ring->number, NULL, NULL); /* only now */
}

/* Every whole record that is committed; then its bytes go back, all at once. */
static void drain(int channel, struct ring *ring) {
    uint64_t sum = 0, done = 0;
    if (read(ring->data_fd, &sum, 8) < 0 && errno != EAGAIN) die("read data eventfd"); /* after this the bytes are there */
    if (sum > ring->capacity - (ring->committed - ring->consumed)) {
        fault(channel, ring, "cursor_beyond_capacity", "more was committed than the ring holds");
        return;
    }
    ring->committed += sum;
    uint64_t ready = ring->committed - ring->consumed;
    while (ready - done >= RECORD_HEADER) {
        struct record_header head;
        unsigned char *into = (unsigned char *)&head;
        for (uint64_t i = 0; i < RECORD_HEADER; i++) into[i] = ring->data[(ring->consumed + done + i) % ring->capacity];
        const char *wrong = memcmp(head.magic, "MO01", 4)                         ? "unsupported_magic"
                            : head.version != 1                                   ? "unsupported_version"
                            : head.length != RECORD_HEADER                        ? "malformed_header_length"
                            : head.reserved != 0 || head.flags > 3                ? "malformed_header"
                            : head.extent > ring->max_extent                      ? "extent_exceeds_max"
                            : ring->alignment && head.extent % ring->alignment    ? "extent_alignment_violation"
                            : head.sequence != ring->sequence                     ? "sequence_violation"
                                                                                  : NULL;
        if (wrong) {
            fault(channel, ring, wrong, "a record is not as it must be");
            return;
        }
        if (ready - done < RECORD_HEADER + head.extent) break; /* the rest comes with a later commit */
        for (uint64_t i = 0; i < head.extent; i++) {
            ring->checksum ^= ring->data[(ring->consumed + done + RECORD_HEADER + i) % ring->capacity];
            ring->checksum *= 1099511628211u;
        }
        done += RECORD_HEADER + head.extent;
        ring->sequence++, ring->objects++;
        ring->bytes += head.extent;
        ring->last_object = head.object_id;
    }
    if (done) { /* nothing of it is looked at any more */
        ring->consumed += done;
        __atomic_store_n((uint64_t *)(void *)(ring->header + 32), ring->consumed, __ATOMIC_RELAXED); /* for display */
        if (write(ring->space_fd, &done, 8) < 0) die("write space eventfd");
    }
    if (ring->ending && ring->committed == ring->consumed) {
        ring->ending = 0;
        tell(channel, "closed", ring->number, NULL, NULL);
    } else if (ring->ending)
        fault(channel, ring, "eof_before_full_payload", "the stream ended within a record");
}

int main(void) {
    const char *named = getenv("SENNIT_SHIM_FD");
    char text[PACKET + 1];
    int fds[MAX_FDS], count;
    if (!named || !take(atoi(named), text, fds, &count) || strcmp(text, "edges 1") || count != 1) {
        fprintf(stderr, "no channel came through SENNIT_SHIM_FD\n");
        return 1;
    }
    int channel = fds[0];
    struct ring ring = {0};
    for (;;) {
        struct pollfd waits[2] = {{channel, POLLIN, 0}, {ring.data_fd, POLLIN, 0}};
        int reading = ring.mapped && !ring.faulted;
        if (poll(waits, reading ? 2 : 1, -1) < 0 && errno != EINTR) die("poll");
        if (reading && waits[1].revents) drain(channel, &ring);
        if (!waits[0].revents) continue;
        if (!take(channel, text, fds, &count)) return 0; /* the edges process is gone, and its rings with it */
        int ours = ring.mapped && number(text, "ring") == ring.number;
        if (says(text, "install"))
            install(channel, text, fds, count, &ring);
        else if (says(text, "end") && ours) {
            ring.ending = 1;
            if (!ring.faulted) drain(channel, &ring);
        } else if (says(text, "uninstall") && ours)
            let_go(channel, &ring);
        else if (says(text, "uninstall"))
            tell(channel, "quiesced", number(text, "ring"), NULL, NULL);
    }
}
