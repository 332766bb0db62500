/* A trace of all that a process does to the files below one directory, and faults of the device that has them.
 * LD_PRELOAD loads it, `tests.support.power` reads the trace and sets the faults, and `sitecustomize.py` beside it has
 * each process of a service load it.
 *
 * PYTHONPOWER_ROOT    the directory; calls on other files pass through
 * PYTHONPOWER_TRACE   the file that records are appended to, by all processes
 * PYTHONPOWER_BOOT    a file that is read in place of /proc/sys/kernel/random/boot_id
 * PYTHONPOWER_FAULTS  a file with a `struct faults`, which the test changes while processes run
 *
 * Each call is made as it is, so the process sees its own files. A record is appended after the call, and before its
 * caller can continue: what was answered is in the trace. A sync has two records, before and after, because it covers
 * only what was written before it began. A sync that fails is not made: its process still sees the bytes, as it does
 * when a kernel fails to write them. One writev on a descriptor with O_APPEND makes a record, so records of processes
 * and threads do not mix.
 *
 *     offset  size  field
 *          0     4  magic   "TPPW"
 *          4     4  op      one of `enum op`
 *          8     8  time    CLOCK_MONOTONIC, ns
 *         16     8  inode   of the file or directory
 *         24     8  offset  or the size that a file gets
 *         32     4  one     bytes of the path
 *         36     4  two     bytes of the second path of a rename
 *         40     8  length  bytes of data that follow the paths
 *         48        path, second path, data
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum op { CREATE = 1, WRITE, SIZE, RENAME, UNLINK, MKDIR, RMDIR, SYNC, SYNCED, FAILED };

struct record {
    char magic[4];
    uint32_t op;
    uint64_t time, inode, offset;
    uint32_t one, two;
    uint64_t length;
};
_Static_assert(sizeof(struct record) == 48, "no padding");

struct faults {
    int32_t syncs;       /* so many syncs fail with EIO, -1: all */
    int32_t write_errno; /* writes, and new files and directories, fail with it */
    uint32_t sync_us;    /* each sync takes so much longer */
    uint32_t failed;     /* syncs that have failed */
};
_Static_assert(sizeof(struct faults) == 16, "no padding");
static struct faults none, *faults = &none;

#define DESCRIPTORS 65536
#define HIGH 1000 /* the descriptor of the trace is out of the way of those that processes choose */
static unsigned char ours[DESCRIPTORS]; /* whether a descriptor is of a file below the root */
static char root[PATH_MAX];
static char trace_path[PATH_MAX];
static const char *boot_path;
static size_t root_length;
static int trace_fd = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    const char *below = getenv("PYTHONPOWER_ROOT"), *trace = getenv("PYTHONPOWER_TRACE");
    boot_path = getenv("PYTHONPOWER_BOOT");
    if (!below || !trace || strlen(below) >= PATH_MAX || strlen(trace) >= PATH_MAX)
        return;
    strcpy(root, below);
    strcpy(trace_path, trace);
    root_length = strlen(root);
    const char *path = getenv("PYTHONPOWER_FAULTS");
    int fd = path ? REAL(open64)(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *shared = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REAL(close)(fd);
    if (shared != MAP_FAILED)
        faults = shared;
}

/* Whether a change of a file below the root fails; then it also sets errno. */
static int write_fails(void) {
    int found = __atomic_load_n(&faults->write_errno, __ATOMIC_SEQ_CST);
    if (found)
        errno = found;
    return found;
}

static int sync_fails(void) {
    int32_t left = __atomic_load_n(&faults->syncs, __ATOMIC_SEQ_CST);
    while (left > 0 && !__atomic_compare_exchange_n(&faults->syncs, &left, left - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    if (left)
        __atomic_add_fetch(&faults->failed, 1, __ATOMIC_SEQ_CST);
    return left != 0;
}

static void fail(const char *what) {
    dprintf(2, "trace of %s: %s: %s\n", trace_path, what, strerror(errno));
    abort(); /* a trace with a hole would prove nothing */
}

static int opened_trace(void) {
    if (trace_fd < 0 || fcntl(trace_fd, F_GETFD) < 0) {
        int found = REAL(open64)(trace_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (found < 0)
            fail("open");
        trace_fd = fcntl(found, F_DUPFD_CLOEXEC, HIGH);
        if (trace_fd < 0)
            fail("descriptor");
        REAL(close)(found);
    }
    return trace_fd;
}

static void put(enum op op, uint64_t inode, uint64_t offset, const char *one, const char *two, const struct iovec *data,
                int pieces, uint64_t length) {
    int kept = errno;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct record head = {{'T', 'P', 'P', 'W'}, op, now.tv_sec * 1000000000ull + now.tv_nsec, inode, offset,
                          one ? strlen(one) : 0, two ? strlen(two) : 0, length};
    struct iovec all[IOV_MAX];
    int count = 0;
    all[count++] = (struct iovec){&head, sizeof head};
    if (head.one)
        all[count++] = (struct iovec){(void *)one, head.one};
    if (head.two)
        all[count++] = (struct iovec){(void *)two, head.two};
    uint64_t left = length;
    char *joined = NULL;
    if (pieces > IOV_MAX - 4) { /* more pieces than one writev takes beside the paths: copy them into one */
        joined = malloc(length);
        uint64_t at = 0;
        for (int each = 0; joined && each < pieces && at < length; each++) {
            uint64_t size = data[each].iov_len < length - at ? data[each].iov_len : length - at;
            memcpy(joined + at, data[each].iov_base, size);
            at += size;
        }
        if (!joined)
            fail("memory");
        all[count++] = (struct iovec){joined, length};
    } else {
        for (int each = 0; each < pieces && left; each++) {
            uint64_t size = data[each].iov_len < left ? data[each].iov_len : left;
            all[count++] = (struct iovec){data[each].iov_base, size};
            left -= size;
        }
    }
    uint64_t whole = sizeof head + head.one + head.two + length;
    if ((uint64_t)REAL(writev)(opened_trace(), all, count) != whole)
        fail("write");
    free(joined);
    errno = kept;
}

/* The path below the root, or NULL. */
static const char *below(int folder, const char *path, char *buffer) {
    if (!root_length)
        return NULL;
    if (path[0] == '/') {
        snprintf(buffer, PATH_MAX, "%s", path);
    } else {
        char link[64], base[PATH_MAX];
        if (folder == AT_FDCWD)
            snprintf(link, sizeof link, "/proc/self/cwd");
        else
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t size = readlink(link, base, sizeof base - 1);
        if (size < 0)
            return NULL;
        base[size] = 0;
        if (snprintf(buffer, PATH_MAX, "%s/%s", base, path) >= PATH_MAX)
            return NULL;
    }
    if (strncmp(buffer, root, root_length) || (buffer[root_length] && buffer[root_length] != '/'))
        return NULL;
    return buffer;
}

static int is_ours(int fd) { return fd >= 0 && fd < DESCRIPTORS && ours[fd]; }

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

static int opening(int folder, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    if (boot_path && !strcmp(path, "/proc/sys/kernel/random/boot_id"))
        path = boot_path;
    const char *name = below(folder, path, buffer);
    int existed = name && !faccessat(folder, path, F_OK, AT_SYMLINK_NOFOLLOW);
    if (name && !existed && (flags & O_CREAT) && write_fails())
        return -1;
    int fd = REAL(openat64)(folder, path, flags, mode);
    if (fd < 0 || fd >= DESCRIPTORS)
        return fd;
    ours[fd] = name != NULL;
    if (name && (flags & O_ACCMODE) != O_RDONLY) {
        if (!existed)
            put(CREATE, inode_of(fd), 0, name, NULL, NULL, 0, 0);
        else if (flags & O_TRUNC)
            put(SIZE, inode_of(fd), 0, NULL, NULL, NULL, 0, 0);
    }
    return fd;
}

#define MODE_OF(flags)                                                                                                 \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                                           \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

int open(const char *path, int flags, ...) {
    MODE_OF(flags)
    return opening(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE_OF(flags)
    return opening(AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    MODE_OF(flags)
    return opening(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE_OF(flags)
    return opening(folder, path, flags, mode);
}

int close(int fd) {
    if (is_ours(fd))
        ours[fd] = 0;
    return REAL(close)(fd);
}

/* Data. `write` and `writev` leave the position at the end of what was written. */

ssize_t write(int fd, const void *data, size_t size) {
    if (is_ours(fd) && write_fails())
        return -1;
    ssize_t taken = REAL(write)(fd, data, size);
    if (taken > 0 && is_ours(fd))
        put(WRITE, inode_of(fd), lseek64(fd, 0, SEEK_CUR) - taken, NULL, NULL, &(struct iovec){(void *)data, taken}, 1, taken);
    return taken;
}

ssize_t writev(int fd, const struct iovec *data, int pieces) {
    if (is_ours(fd) && write_fails())
        return -1;
    ssize_t taken = REAL(writev)(fd, data, pieces);
    if (taken > 0 && is_ours(fd))
        put(WRITE, inode_of(fd), lseek64(fd, 0, SEEK_CUR) - taken, NULL, NULL, data, pieces, taken);
    return taken;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    if (is_ours(fd) && write_fails())
        return -1;
    ssize_t taken = REAL(pwrite64)(fd, data, size, offset);
    if (taken > 0 && is_ours(fd))
        put(WRITE, inode_of(fd), offset, NULL, NULL, &(struct iovec){(void *)data, taken}, 1, taken);
    return taken;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }

/* A call that would change files and that the trace does not know of must not pass unseen. */

ssize_t pwritev64(int fd, const struct iovec *data, int pieces, off64_t offset) {
    if (is_ours(fd))
        fail("pwritev is not traced");
    return REAL(pwritev64)(fd, data, pieces, offset);
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t size) {
    static ssize_t (*real)(int, int, off64_t *, size_t);
    if (is_ours(to))
        fail("sendfile is not traced");
    real = real ? real : (ssize_t(*)(int, int, off64_t *, size_t))dlsym(RTLD_NEXT, "sendfile64");
    return real(to, from, offset, size);
}

ssize_t copy_file_range(int from, off64_t *in, int to, off64_t *out, size_t size, unsigned flags) {
    if (is_ours(to))
        fail("copy_file_range is not traced");
    return REAL(copy_file_range)(from, in, to, out, size, flags);
}

int link(const char *from, const char *to) {
    char buffer[PATH_MAX];
    if (below(AT_FDCWD, to, buffer))
        fail("link is not traced");
    return REAL(link)(from, to);
}

int ftruncate64(int fd, off64_t size) {
    int failed = REAL(ftruncate64)(fd, size);
    if (!failed && is_ours(fd))
        put(SIZE, inode_of(fd), size, NULL, NULL, NULL, 0, 0);
    return failed;
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int truncate64(const char *path, off64_t size) {
    char buffer[PATH_MAX];
    struct stat found;
    int failed = REAL(truncate64)(path, size);
    if (!failed && below(AT_FDCWD, path, buffer) && !stat(path, &found))
        put(SIZE, found.st_ino, size, NULL, NULL, NULL, 0, 0);
    return failed;
}

int truncate(const char *path, off_t size) { return truncate64(path, size); }

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    if (is_ours(fd) && write_fails())
        return errno; /* it sets none itself */
    int failed = REAL(posix_fallocate64)(fd, offset, length);
    struct stat found;
    if (!failed && is_ours(fd) && !fstat(fd, &found))
        put(SIZE, found.st_ino, found.st_size, NULL, NULL, NULL, 0, 0);
    return failed;
}

int posix_fallocate(int fd, off_t offset, off_t length) { return posix_fallocate64(fd, offset, length); }

/* Names. */

static int renamed(int failed, int folder, const char *from, int other, const char *to) {
    char one[PATH_MAX], two[PATH_MAX];
    const char *source = below(folder, from, one), *target = below(other, to, two);
    if (!failed && (source || target)) {
        if (!source || !target)
            fail("a rename into the directory, or out of it, is not traced");
        put(RENAME, 0, 0, source, target, NULL, 0, 0);
    }
    return failed;
}

int rename(const char *from, const char *to) {
    return renamed(REAL(rename)(from, to), AT_FDCWD, from, AT_FDCWD, to);
}

int renameat(int folder, const char *from, int other, const char *to) {
    return renamed(REAL(renameat)(folder, from, other, to), folder, from, other, to);
}

int unlinkat(int folder, const char *path, int flags) {
    char buffer[PATH_MAX];
    const char *name = below(folder, path, buffer);
    int failed = REAL(unlinkat)(folder, path, flags);
    if (!failed && name)
        put(flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 0, name, NULL, NULL, 0, 0);
    return failed;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int folder, const char *path, mode_t mode) {
    char buffer[PATH_MAX];
    const char *name = below(folder, path, buffer);
    if (name && faccessat(folder, path, F_OK, AT_SYMLINK_NOFOLLOW) && write_fails())
        return -1;
    int failed = REAL(mkdirat)(folder, path, mode);
    if (!failed && name)
        put(MKDIR, 0, 0, name, NULL, NULL, 0, 0);
    return failed;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Syncs. That of a directory makes its names durable: its record has the path. */

static int synced(int fd, int (*sync)(int)) {
    if (!is_ours(fd))
        return sync(fd);
    struct stat found;
    char link[64], path[PATH_MAX];
    path[0] = 0;
    if (!fstat(fd, &found) && S_ISDIR(found.st_mode)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t size = readlink(link, path, sizeof path - 1);
        path[size < 0 ? 0 : size] = 0;
    }
    /* `offset` joins the two records: the thread's. */
    put(SYNC, found.st_ino, gettid(), path, NULL, NULL, 0, 0);
    if (faults->sync_us)
        usleep(faults->sync_us);
    if (sync_fails()) {
        put(FAILED, found.st_ino, gettid(), path, NULL, NULL, 0, 0);
        errno = EIO;
        return -1;
    }
    int failed = sync(fd);
    if (!failed)
        put(SYNCED, found.st_ino, gettid(), path, NULL, NULL, 0, 0);
    return failed;
}

int fsync(int fd) { return synced(fd, REAL(fsync)); }

int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }
