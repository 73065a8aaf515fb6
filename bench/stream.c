/* STREAM's triad, a = b + q c, in C with OpenMP: what `python -m bench.stream` compares the agent's kernel with.
 *
 * Definition of kernel and byte count: J. D. McCalpin, https://www.cs.virginia.edu/stream/. As in the agent, pages of
 * the size asked for, each thread stamps its own begin and end, and threads do not wait for each other between the
 * passes of a window.
 *
 * stream ARRAY_BYTES THREADS small|huge plain|non-temporal PASSES WINDOWS
 * prints the MB/s (10^6 bytes) of each window, one a line. The passes of one window are done before, untimed. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { HUGE_BYTES = 2 << 20 };

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static double *array(size_t bytes, int huge) {
    char *reserved = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (reserved == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    char *start = reserved + (HUGE_BYTES - (uintptr_t)reserved % HUGE_BYTES) % HUGE_BYTES;
    if (madvise(start, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) != 0 && huge) {
        perror("madvise");
        exit(1);
    }
    return (double *)start;
}

static void triad(double *restrict a, const double *restrict b, const double *restrict c, double q, int64_t count) {
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < count; i++)
        a[i] = b[i] + q * c[i];
}

/* The same with streaming stores, as wide as the compiler may use. */
static void triad_streaming(double *a, const double *b, const double *c, double q, int64_t count) {
#if defined(__AVX512F__)
    enum { WIDE = 8 };
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < count / WIDE; i++)
        _mm512_stream_pd(a + i * WIDE, _mm512_add_pd(_mm512_load_pd(b + i * WIDE),
                                                     _mm512_mul_pd(_mm512_set1_pd(q), _mm512_load_pd(c + i * WIDE))));
#elif defined(__AVX__)
    enum { WIDE = 4 };
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < count / WIDE; i++)
        _mm256_stream_pd(a + i * WIDE, _mm256_add_pd(_mm256_load_pd(b + i * WIDE),
                                                     _mm256_mul_pd(_mm256_set1_pd(q), _mm256_load_pd(c + i * WIDE))));
#else
    enum { WIDE = 2 };
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < count / WIDE; i++)
        _mm_stream_pd(a + i * WIDE, _mm_add_pd(_mm_load_pd(b + i * WIDE),
                                               _mm_mul_pd(_mm_set1_pd(q), _mm_load_pd(c + i * WIDE))));
#endif
    _mm_sfence();
}

static int64_t window_ns(double *a, const double *b, const double *c, double q, int64_t count, int streaming,
                         int passes) {
    int64_t begin = INT64_MAX, end = 0;
#pragma omp parallel reduction(min : begin) reduction(max : end)
    {
#pragma omp barrier
        begin = now_ns();
        for (int pass = 0; pass < passes; pass++) {
            if (streaming)
                triad_streaming(a, b, c, q, count);
            else
                triad(a, b, c, q, count);
        }
        end = now_ns();
    }
    return end - begin;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: stream ARRAY_BYTES THREADS small|huge plain|non-temporal PASSES WINDOWS\n");
        return 2;
    }
    int64_t count = atoll(argv[1]) / (int64_t)sizeof(double);
    omp_set_num_threads(atoi(argv[2]));
    int huge = strcmp(argv[3], "huge") == 0, streaming = strcmp(argv[4], "non-temporal") == 0;
    int passes = atoi(argv[5]), windows = atoi(argv[6]);
    size_t bytes = (size_t)count * sizeof(double);
    double *a = array(bytes, huge), *b = array(bytes, huge), *c = array(bytes, huge);
    double q = 3.0;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) {
        a[i] = 0.0;
        b[i] = (double)(i % 1019 + 7);
        c[i] = (double)(i % 1021 + 1);
    }
    window_ns(a, b, c, q, count, streaming, passes);
    for (int window = 0; window < windows; window++)
        printf("%.1f\n", 3e3 * (double)bytes * passes / (double)window_ns(a, b, c, q, count, streaming, passes));
    for (int64_t i = 0; i < count; i++) {
        if (a[i] != b[i] + q * c[i]) {
            fprintf(stderr, "element %lld is wrong\n", (long long)i);
            return 1;
        }
    }
    return 0;
}
