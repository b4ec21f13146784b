/* Another clock for some processes, as on a machine whose clock is wrong: of those whose command line has CLOCK_OF, it is
   ahead by the seconds that the file CLOCK_AHEAD has when they start. Put before them by LD_PRELOAD. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead;

__attribute__((constructor)) static void read_ahead(void) {
    static char line[1 << 16];
    const char *of = getenv("CLOCK_OF"), *path = getenv("CLOCK_AHEAD");
    FILE *file = fopen("/proc/self/cmdline", "r");
    if (!of || !path || !file) return;
    size_t length = fread(line, 1, sizeof line, file);
    fclose(file);
    if (!memmem(line, length, of, strlen(of)) || !(file = fopen(path, "r"))) return;
    if (fscanf(file, "%ld", &ahead) != 1) ahead = 0;
    fclose(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    long failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += ahead;
    return (int)failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    (void)zone;
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
