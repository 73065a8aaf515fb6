/* What the reference loops share: count until the alarm rings, then print the count and the nanoseconds it took. */
#ifndef RUN_H
#define RUN_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long loops;
static struct timespec began;

static void report(int signal_number)
{
    struct timespec ended;
    (void)signal_number;
    clock_gettime(CLOCK_MONOTONIC, &ended);
    printf("%lu %ld\n", loops,
           (ended.tv_sec - began.tv_sec) * 1000000000L + (ended.tv_nsec - began.tv_nsec));
    fflush(stdout);
    _exit(0);
}

/* Begin to count; argv[1] is the time in microseconds, below a second. */
static void begin(int argc, char **argv)
{
    struct itimerval alarm_in = {{0, 0}, {0, 0}};
    if (argc != 2) {
        fprintf(stderr, "usage: %s MICROSECONDS\n", argv[0]);
        exit(2);
    }
    alarm_in.it_value.tv_usec = atol(argv[1]);
    signal(SIGALRM, report);
    clock_gettime(CLOCK_MONOTONIC, &began);
    setitimer(ITIMER_REAL, &alarm_in, NULL);
}

static inline void fail(const char *call)
{
    perror(call);
    exit(1);
}

#endif
