/* Pipe-based context switching as UnixBench defines it: two processes hand an increasing number to and fro. */
#include "run.h"

#include <sys/prctl.h>

static void answer(int from, int to)
{
    unsigned long expected = 0, number;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;; expected++) {
        if (read(from, &number, sizeof number) != sizeof number)
            _exit(0);
        if (number != expected || write(to, &expected, sizeof expected) != sizeof expected)
            _exit(1);
    }
}

int main(int argc, char **argv)
{
    int there[2], back[2];
    unsigned long number;
    if (pipe(there) || pipe(back))
        fail("pipe");
    switch (fork()) {
    case -1:
        fail("fork");
        break;
    case 0:
        close(there[1]);
        close(back[0]);
        answer(there[0], back[1]);
    }
    close(there[0]);
    close(back[1]);
    begin(argc, argv);
    for (;;) {
        unsigned long sent = loops;
        if (write(there[1], &sent, sizeof sent) != sizeof sent)
            fail("write");
        if (read(back[0], &number, sizeof number) != sizeof number || number != sent)
            fail("read");
        loops++;
    }
}
