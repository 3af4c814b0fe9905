/* Preloaded into a process: records what it does to files below a directory, in order, and lets syncs fail.

   RECORDER_BELOW    the directory, absolute
   RECORDER_TO       file that the record is appended to
   RECORDER_FAILING  while this file exists, syncs of files whose paths match the pattern in it fail with EIO

   A record is a head and its payload; support/file_record.py reads it. Only calls that Python and SQLite make are
   replaced. The test compares the recorded end with the directory, so that a call that is missing here is found. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST_FILES 4096

struct head {
    uint32_t kind; /* a letter */
    int32_t file;
    int64_t number; /* flags of open, offset of a write, size of a truncation */
    uint32_t size;  /* bytes of the payload */
    uint32_t none;
};

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static char *paths[MOST_FILES];
static const char *below;
static const char *failing;
static int record = -1;

__attribute__((constructor)) static void begin(void) {
    below = getenv("RECORDER_BELOW");
    failing = getenv("RECORDER_FAILING");
    const char *to = getenv("RECORDER_TO");
    if (below && to)
        record = syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void put(const void *bytes, size_t size) {
    while (size) {
        ssize_t done = syscall(SYS_write, record, bytes, size);
        if (done < 0)
            abort();
        bytes = (const char *)bytes + done;
        size -= done;
    }
}

static void note(char kind, int file, int64_t number, const void *payload, size_t size) {
    struct head head = {kind, file, number, size, 0};
    put(&head, sizeof head);
    put(payload, size);
}

static int is_below(const char *path) {
    size_t length = below ? strlen(below) : 0;
    return record >= 0 && strncmp(path, below, length) == 0 && (path[length] == '/' || !path[length]);
}

static int is_known(int file) { return file >= 0 && file < MOST_FILES && paths[file]; }

/* The absolute path, in ``whole`` where it is relative to an open directory; NULL where it is none of ours. */
static const char *located(int directory, const char *path, char *whole) {
    if (path[0] != '/' && is_known(directory)) {
        snprintf(whole, PATH_MAX, "%s/%s", paths[directory], path);
        path = whole;
    }
    return is_below(path) ? path : NULL;
}

static int opened(int file, const char *path, int flags) {
    if (file >= 0 && file < MOST_FILES && path) {
        free(paths[file]);
        paths[file] = strdup(path);
        note('o', file, flags, path, strlen(path));
    }
    return file;
}

static int open_at(int directory, const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    pthread_mutex_lock(&turn);
    const char *ours = located(directory, path, whole);
    int file = opened(syscall(SYS_openat, directory, path, flags, mode), ours, flags);
    pthread_mutex_unlock(&turn);
    return file;
}

#define MODE_AFTER(last)            \
    mode_t mode = 0;                \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list more;               \
        va_start(more, last);       \
        mode = va_arg(more, int);   \
        va_end(more);               \
    }

int open(const char *path, int flags, ...) { MODE_AFTER(flags) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE_AFTER(flags) return open_at(AT_FDCWD, path, flags, mode); }
int openat(int directory, const char *path, int flags, ...) { MODE_AFTER(flags) return open_at(directory, path, flags, mode); }
int openat64(int directory, const char *path, int flags, ...) { MODE_AFTER(flags) return open_at(directory, path, flags, mode); }

int close(int file) {
    pthread_mutex_lock(&turn);
    if (is_known(file)) {
        note('c', file, 0, "", 0);
        free(paths[file]);
        paths[file] = NULL;
    }
    int result = syscall(SYS_close, file);
    pthread_mutex_unlock(&turn);
    return result;
}

/* Writes. */

static ssize_t written(ssize_t done, int file, const struct iovec *parts, int64_t at) {
    if (done > 0 && is_known(file)) {
        struct head head = {'w', file, at, done, 0};
        put(&head, sizeof head);
        for (size_t left = done; left; parts++) {
            size_t size = parts->iov_len < left ? parts->iov_len : left;
            put(parts->iov_base, size);
            left -= size;
        }
    }
    return done;
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    pthread_mutex_lock(&turn);
    ssize_t done = syscall(SYS_writev, file, parts, count);
    int64_t at = is_known(file) ? lseek(file, 0, SEEK_CUR) - done : 0;
    done = written(done, file, parts, at);
    pthread_mutex_unlock(&turn);
    return done;
}

ssize_t write(int file, const void *bytes, size_t size) {
    struct iovec part = {(void *)bytes, size};
    return is_known(file) ? writev(file, &part, 1) : syscall(SYS_write, file, bytes, size);
}

static ssize_t write_at(int file, const struct iovec *parts, int count, int64_t at) {
    pthread_mutex_lock(&turn);
    ssize_t done = syscall(SYS_pwritev, file, parts, (long)count, (long)at, 0L);
    done = written(done, file, parts, at);
    pthread_mutex_unlock(&turn);
    return done;
}

ssize_t pwrite64(int file, const void *bytes, size_t size, off64_t at) {
    struct iovec part = {(void *)bytes, size};
    return write_at(file, &part, 1, at);
}
ssize_t pwrite(int file, const void *bytes, size_t size, off_t at) { return pwrite64(file, bytes, size, at); }
ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) { return write_at(file, parts, count, at); }
ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t at) { return write_at(file, parts, count, at); }
ssize_t pwritev2(int file, const struct iovec *parts, int count, off_t at, int flags) {
    (void)flags;
    return write_at(file, parts, count, at);
}
ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off64_t at, int flags) {
    (void)flags;
    return write_at(file, parts, count, at);
}

int ftruncate64(int file, off64_t size) {
    pthread_mutex_lock(&turn);
    int result = syscall(SYS_ftruncate, file, size);
    if (result == 0 && is_known(file))
        note('t', file, size, "", 0);
    pthread_mutex_unlock(&turn);
    return result;
}
int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int posix_fallocate64(int file, off64_t at, off64_t size) {
    pthread_mutex_lock(&turn);
    int result = syscall(SYS_fallocate, file, 0L, (long)at, (long)size) == 0 ? 0 : errno;
    if (result == 0 && is_known(file))
        note('a', file, at + size, "", 0);
    pthread_mutex_unlock(&turn);
    return result;
}
int posix_fallocate(int file, off_t at, off_t size) { return posix_fallocate64(file, at, size); }

/* Names. */

static int named(char kind, int result, const char *path) {
    if (result == 0 && path)
        note(kind, -1, 0, path, strlen(path));
    return result;
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    char whole_from[PATH_MAX], whole_to[PATH_MAX], both[2 * PATH_MAX];
    pthread_mutex_lock(&turn);
    const char *ours = located(from_directory, from, whole_from), *theirs = located(to_directory, to, whole_to);
    int result = syscall(SYS_renameat, from_directory, from, to_directory, to);
    if (result == 0 && ours && theirs) {
        int size = snprintf(both, sizeof both, "%s%c%s", ours, 0, theirs);
        note('r', -1, 0, both, size);
    }
    pthread_mutex_unlock(&turn);
    return result;
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int directory, const char *path, int flags) {
    char whole[PATH_MAX];
    pthread_mutex_lock(&turn);
    const char *ours = located(directory, path, whole);
    int result = named('u', syscall(SYS_unlinkat, directory, path, flags), ours);
    pthread_mutex_unlock(&turn);
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int directory, const char *path, mode_t mode) {
    char whole[PATH_MAX];
    pthread_mutex_lock(&turn);
    const char *ours = located(directory, path, whole);
    int result = named('m', syscall(SYS_mkdirat, directory, path, mode), ours);
    pthread_mutex_unlock(&turn);
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Syncs. The file system need not be a disk: what counts is the record. */

static int fails(const char *path) {
    char pattern[PATH_MAX];
    int file = failing ? syscall(SYS_openat, AT_FDCWD, failing, O_RDONLY) : -1;
    if (file < 0)
        return 0;
    ssize_t size = syscall(SYS_read, file, pattern, sizeof pattern - 1);
    syscall(SYS_close, file);
    pattern[size > 0 ? size : 0] = 0;
    return fnmatch(pattern, path, 0) == 0;
}

int fsync(int file) {
    int result = 0;
    pthread_mutex_lock(&turn);
    if (!is_known(file)) {
        result = syscall(SYS_fsync, file);
    } else if (fails(paths[file])) {
        note('f', file, 0, "", 0);
        errno = EIO;
        result = -1;
    } else {
        note('s', file, 0, "", 0);
    }
    pthread_mutex_unlock(&turn);
    return result;
}
int fdatasync(int file) { return fsync(file); }
