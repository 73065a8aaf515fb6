/* Pipe throughput as UnixBench defines it: 512 bytes written into a pipe and read back, in one process. */
#include "run.h"

int main(int argc, char **argv)
{
    char block[512] = {0};
    int ends[2];
    if (pipe(ends))
        fail("pipe");
    begin(argc, argv);
    for (;;) {
        if (write(ends[1], block, sizeof block) != sizeof block)
            fail("write");
        if (read(ends[0], block, sizeof block) != sizeof block)
            fail("read");
        loops++;
    }
}
