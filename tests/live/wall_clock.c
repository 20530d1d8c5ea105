/* A wall clock that a test moves: preloaded, it adds to CLOCK_REALTIME what a file says, in nanoseconds.
 *
 * Rule: the kernel's own clock stays as it is, so an absolute deadline by the wall clock is moved back before the
 * kernel waits for it. That is how such a wait sees a jump: a real clock that jumps forwards ends it at once, ours
 * lets it go on for as long as was meant. What the monotonic clock times does not pass through here.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL
#define MONOTONIC_S_MAX 1000000000LL /* A condition may wait by the monotonic clock; no machine is up for 31 years. */

static const volatile int64_t *shift_ns;

__attribute__((constructor)) static void open_shift(void) {
    const char *path = getenv("STORM_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *shift_ns, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) shift_ns = page;
    close(file);
}

static struct timespec moved(struct timespec at, int sign) {
    int64_t all = at.tv_sec * NS + at.tv_nsec + (shift_ns ? sign * *shift_ns : 0);
    return (struct timespec){.tv_sec = all / NS, .tv_nsec = all % NS};
}

int clock_gettime(clockid_t which, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, which, at);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) *at = moved(*at, 1);
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    *at = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

static void *real(const char *name, const char *since) {
    void *found = dlvsym(RTLD_NEXT, name, since);
    return found ? found : dlsym(RTLD_NEXT, name);
}

static struct timespec deadline(const struct timespec *at) {
    return at->tv_sec < MONOTONIC_S_MAX ? *at : moved(*at, -1);
}

int pthread_cond_timedwait(pthread_cond_t *it, pthread_mutex_t *mutex, const struct timespec *at) {
    static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!wait) wait = (__typeof__(wait))real("pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec until = deadline(at);
    return wait(it, mutex, &until);
}

int sem_timedwait(sem_t *it, const struct timespec *at) {
    static int (*wait)(sem_t *, const struct timespec *);
    if (!wait) wait = (__typeof__(wait))real("sem_timedwait", "GLIBC_2.34");
    struct timespec until = deadline(at);
    return wait(it, &until);
}
