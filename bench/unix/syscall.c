/* System call overhead as UnixBench defines it: dup and close, getppid, getuid, umask. */
#include "run.h"

#include <sys/stat.h>

int main(int argc, char **argv)
{
    begin(argc, argv);
    for (;;) {
        close(dup(0));
        getppid();
        getuid();
        umask(022);
        loops++;
    }
}
