/* Shifts the wall clock of a program by what an 8-byte file says, in microseconds, which may change while it runs:
 *   cc -O2 -shared -fPIC -o shim.so clock_shim.c
 *   LD_PRELOAD=shim.so CLOCK_SHIM=FILE redis-server ... */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *shift;

__attribute__((constructor)) static void map_shift(void) {
  const char *file = getenv("CLOCK_SHIM");
  int descriptor = file ? open(file, O_RDONLY) : -1;
  if (descriptor < 0) return;
  void *mapped = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, descriptor, 0);
  if (mapped != MAP_FAILED) shift = mapped;
  close(descriptor);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    long long nanos = now->tv_sec * 1000000000LL + now->tv_nsec + *shift * 1000;
    now->tv_sec = nanos / 1000000000LL;
    now->tv_nsec = nanos % 1000000000LL;
  }
  return result;
}

int gettimeofday(struct timeval *now, void *zone) {
  (void)zone;
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  now->tv_sec = time.tv_sec;
  now->tv_usec = time.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  if (now) *now = time.tv_sec;
  return time.tv_sec;
}
