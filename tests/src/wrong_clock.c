/* A machine's clock that is wrong, for one program: LD_PRELOAD.
 *
 * libfaketime does the same for the time of day, but not for C11's cnd_timedwait, by which
 * librdkafka waits: a clock of tomorrow made each of its waits last a day.
 *
 * As with the kernel's own clock, a wait that is under way when the clock is set back lasts
 * until the clock has come to its deadline again. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

/* By how many seconds it is wrong: the test writes it into the file WRONG_CLOCK. */
static _Atomic int64_t *wrong_by;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WRONG_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *wrong_by, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) wrong_by = page;
    close(file);
}

static int64_t seconds(void) { return wrong_by ? atomic_load(wrong_by) : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += seconds();
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec fine;
    if (clock_gettime(CLOCK_REALTIME, &fine) != 0) return -1;
    now->tv_sec = fine.tv_sec;
    now->tv_usec = fine.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *told) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict deadline) {
    static int (*_Atomic real)(cnd_t *, mtx_t *, const struct timespec *);
    if (!real) real = (int (*)(cnd_t *, mtx_t *, const struct timespec *))dlsym(RTLD_NEXT, "cnd_timedwait");
    for (;;) {
        struct timespec right = *deadline, now;
        right.tv_sec -= seconds();
        int ended = real(condition, mutex, &right);
        if (ended != thrd_timedout) return ended;
        clock_gettime(CLOCK_REALTIME, &now);
        if (now.tv_sec > deadline->tv_sec || (now.tv_sec == deadline->tv_sec && now.tv_nsec >= deadline->tv_nsec))
            return thrd_timedout;
    }
}
