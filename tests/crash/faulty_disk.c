/* A disk that fails on request: preloaded into the server, it stands between libc and the kernel.
 *
 * The directory named by FAULTY_DISK holds the requests, as empty files:
 *   sync-error   the next fsync, fdatasync or synchronous write fails with EIO, once, and takes the
 *                bytes with it: what was written since the last good sync reads as zeros
 *                afterwards, as it may on Linux after a failed write-back.  A later sync succeeds.
 *   write-error  the next positioned write fails with EIO, once.
 *   full         as long as it is there, nothing that needs new blocks works: ENOSPC.
 * A request that was met once is answered by removing its file.
 *
 * Only regular files beyond the standard streams are touched.  Writes by io_uring would pass beneath
 * us, so there is no io_uring: its errors have tests of their own (tests/unit/storage/test_ring.py).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS 4096
static struct {
  off_t start, end; /* written since the last good sync; end 0 = nothing */
} unsynced[FDS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const char *request(const char *name, char *path, size_t size) {
  const char *dir = getenv("FAULTY_DISK");
  snprintf(path, size, "%s/%s", dir ? dir : "/nonexistent", name);
  return path;
}

/* unlink succeeds for exactly one caller, however many threads ask. */
static int met_once(const char *name) {
  char path[4096];
  return unlink(request(name, path, sizeof path)) == 0;
}

static int asked(const char *name) {
  char path[4096];
  return access(request(name, path, sizeof path), F_OK) == 0;
}

static int ours(int fd, struct stat *st) {
  return fd > 2 && fd < FDS && fstat(fd, st) == 0 && S_ISREG(st->st_mode);
}

static int write_fails(int fd, off_t start, size_t length) {
  struct stat st;
  int saved = errno;
  if (!ours(fd, &st)) return 0;
  if (met_once("write-error")) {
    errno = EIO;
    return 1;
  }
  if (start + (off_t)length > (off_t)st.st_blocks * 512 && asked("full")) {
    errno = ENOSPC;
    return 1;
  }
  pthread_mutex_lock(&mutex);
  if (unsynced[fd].end == 0 || start < unsynced[fd].start) unsynced[fd].start = start;
  if (start + (off_t)length > unsynced[fd].end) unsynced[fd].end = start + (off_t)length;
  pthread_mutex_unlock(&mutex);
  errno = saved;
  return 0;
}

static size_t total(const struct iovec *parts, int count) {
  size_t length = 0;
  for (int i = 0; i < count; i++) length += parts[i].iov_len;
  return length;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off_t start) {
  return write_fails(fd, start, length) ? -1 : REAL(pwrite64)(fd, data, length, start);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t start) {
  return pwrite64(fd, data, length, start);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t start) {
  return write_fails(fd, start, total(parts, count)) ? -1
                                                     : REAL(pwritev64)(fd, parts, count, start);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t start) {
  return pwritev64(fd, parts, count, start);
}
static int sync_fails(int fd);
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t start, int flags) {
  if (write_fails(fd, start, total(parts, count))) return -1;
  ssize_t written = REAL(pwritev64v2)(fd, parts, count, start, flags);
  return written >= 0 && flags & RWF_DSYNC && sync_fails(fd) ? -1 : written;
}
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t start, int flags) {
  return pwritev64v2(fd, parts, count, start, flags);
}
ssize_t write(int fd, const void *data, size_t length) {
  off_t start = fd > 2 ? lseek(fd, 0, SEEK_CUR) : -1;
  if (start >= 0 && write_fails(fd, start, length)) return -1;
  return REAL(write)(fd, data, length);
}

/* Extending a file without blocks works on a full disk; asking for blocks does not. */
int fallocate64(int fd, int mode, off_t start, off_t length) {
  struct stat st;
  if (ours(fd, &st) && start + length > (off_t)st.st_blocks * 512 && asked("full")) {
    errno = ENOSPC;
    return -1;
  }
  return REAL(fallocate64)(fd, mode, start, length);
}
int fallocate(int fd, int mode, off_t start, off_t length) {
  return fallocate64(fd, mode, start, length);
}
int posix_fallocate64(int fd, off_t start, off_t length) {
  struct stat st;
  if (ours(fd, &st) && start + length > (off_t)st.st_blocks * 512 && asked("full")) return ENOSPC;
  return REAL(posix_fallocate64)(fd, start, length);
}
int posix_fallocate(int fd, off_t start, off_t length) {
  return posix_fallocate64(fd, start, length);
}

int fstatvfs64(int fd, struct statvfs64 *found) {
  int result = REAL(fstatvfs64)(fd, found);
  if (result == 0 && asked("full")) found->f_bfree = found->f_bavail = 0;
  return result;
}
int fstatvfs(int fd, struct statvfs *found) {
  int result = REAL(fstatvfs)(fd, found);
  if (result == 0 && asked("full")) found->f_bfree = found->f_bavail = 0;
  return result;
}

static int sync_fails(int fd) {
  static const char zeros[65536];
  struct stat st;
  int saved = errno, fails = 0;
  if (!ours(fd, &st)) return 0;
  pthread_mutex_lock(&mutex);
  if (unsynced[fd].end != 0 && met_once("sync-error")) {
    for (off_t at = unsynced[fd].start; at < unsynced[fd].end; at += sizeof zeros) {
      size_t left = (size_t)(unsynced[fd].end - at);
      if (REAL(pwrite64)(fd, zeros, left < sizeof zeros ? left : sizeof zeros, at) < 0) abort();
    }
    fails = 1;
  }
  unsynced[fd].end = 0;
  pthread_mutex_unlock(&mutex);
  errno = fails ? EIO : saved;
  return fails;
}
int fsync(int fd) { return sync_fails(fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return sync_fails(fd) ? -1 : REAL(fdatasync)(fd); }

int close(int fd) {
  if (fd >= 0 && fd < FDS) {
    pthread_mutex_lock(&mutex);
    unsynced[fd].end = 0;
    pthread_mutex_unlock(&mutex);
  }
  return REAL(close)(fd);
}

long syscall(long number, ...) {
  long a[6];
  va_list arguments;
  if (number == SYS_io_uring_setup) {
    errno = ENOSYS;
    return -1;
  }
  va_start(arguments, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(arguments, long);
  va_end(arguments);
  return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
