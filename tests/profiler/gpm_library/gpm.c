/* FAKE. As much of NVML as GPM takes, for NVIDIA's own Python bindings: what they pass must be what a C library
 * gets. One device, GPU-1. Its metric 1 (a percentage) is 50, 20 and 21 (MiB/s) are 3 and 7, 61 is 9, 60 is 11;
 * every other one is not supported. At its end it says how many samples were not given back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, GPU_IS_LOST = 15 };
typedef struct { unsigned id; int status; double value; char *names[3]; } Metric;
typedef struct { unsigned version, count; void *before, *after; Metric metrics[98]; } Question;

static int device, samples;

__attribute__((destructor)) static void leave(void) { fprintf(stderr, "samples left: %d\n", samples); }

int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "Unknown Error"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    *out = &device;
    return strcmp(uuid, "GPU-1") ? NOT_FOUND : OK;
}

int nvmlGpmQueryDeviceSupport(void *handle, unsigned *out) {
    out[1] = 1; /* {version, isSupportedDevice} */
    return handle == &device && out[0] == 1 ? OK : INVALID;
}

int nvmlGpmSampleAlloc(void **out) {
    *out = calloc(1, sizeof(int));
    samples++;
    return OK;
}

int nvmlGpmSampleFree(void *sample) {
    free(sample);
    samples--;
    return OK;
}

int nvmlGpmSampleGet(void *handle, void *sample) {
    static int taken;
    if (handle != &device || getenv("LOST")) return GPU_IS_LOST;
    *(int *)sample = ++taken;
    return OK;
}

int nvmlGpmMetricsGet(Question *asked) {
    if (asked->version != 1 || *(int *)asked->before >= *(int *)asked->after) return INVALID;
    for (unsigned i = 0; i < asked->count; i++) {
        Metric *m = &asked->metrics[i];
        m->value = m->id == 1 ? 50 : m->id == 20 ? 3 : m->id == 21 ? 7 : m->id == 61 ? 9 : m->id == 60 ? 11 : 0;
        m->status = m->value ? OK : NOT_SUPPORTED;
    }
    return OK;
}
