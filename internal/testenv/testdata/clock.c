// A clock that a test can step, for programs that libfaketime breaks. Build: gcc -O2 -shared -fPIC -o clock.so clock.c;
// run the program with LD_PRELOAD=clock.so CLOCK_SHIM=FILE. FILE has 4,096 bytes; the first 8 are the offset in
// microseconds, as a native int64.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *offset;

__attribute__((constructor)) static void init(void) {
	const char *path = getenv("CLOCK_SHIM");
	if (!path) return;
	int fd = open(path, O_RDONLY);
	if (fd < 0) return;
	void *m = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
	if (m != MAP_FAILED) offset = m;
}

static void shift(struct timespec *ts) {
	long us = offset ? *offset : 0;
	long ns = ts->tv_nsec + us % 1000000 * 1000;
	ts->tv_sec += us / 1000000;
	if (ns < 0) ns += 1000000000, ts->tv_sec--;
	if (ns >= 1000000000) ns -= 1000000000, ts->tv_sec++;
	ts->tv_nsec = ns;
}

int clock_gettime(clockid_t c, struct timespec *ts) {
	int r = syscall(SYS_clock_gettime, c, ts);
	if (r == 0 && (c == CLOCK_REALTIME || c == CLOCK_REALTIME_COARSE)) shift(ts);
	return r;
}

int gettimeofday(struct timeval *tv, void *tz) {
	struct timespec ts;
	(void)tz;
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (t) *t = ts.tv_sec;
	return ts.tv_sec;
}
