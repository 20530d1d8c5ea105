/* A stand-in for CUDA's driver library, for tests: the functions that `hwtests/first/client.py` calls. FAKE: it
 * computes nothing, and proves nothing about a GPU.
 *
 * Build:  cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.so.1 libcuda.c
 *
 * GPUs and the folder of claims are those of the file of COTENANT_MOCK_NVML (tests/agent/nvml/mock_nvml.c): who
 * opens a GPU writes a claim, and so NVML's stand-in and the control program's stub know it. A program is a client
 * where its pipe directory has a `control`; the default folder is that of STAND_IN_PIPE. A limit under 512 MiB is
 * error 46, memory beyond a limit error 2. A fault is 700 for its program, and 719 for every client of its daemon.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NO_DEVICE = 100, BUSY = 46, NO_MEMORY = 2, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, GPUS_MAX = 16 };
#define MIB (1024ULL * 1024ULL)
#define CONTEXT_MIB 300ULL
#define TOTAL_MIB 144384ULL

static char uuids[GPUS_MAX][64], visible[GPUS_MAX][64], claims[512], claim[1024], pipe_path[512];
static int count, is_client, has_faulted;
static unsigned long long taken_mib, limit_mib = TOTAL_MIB;

static int exists(const char *folder, const char *name) {
    char path[1024];
    struct stat found;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &found) == 0;
}

static void read_facts(void) {
    FILE *file = fopen(getenv("COTENANT_MOCK_NVML"), "r");
    char line[1024], value[512];
    int index;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "gpu %d uuid %63s", &index, value) == 2) snprintf(uuids[index], 64, "%.63s", value);
        if (sscanf(line, "claims %511s", value) == 1) snprintf(claims, sizeof claims, "%s", value);
    }
    if (file) fclose(file);
}

static void drop_claim(void) { if (claim[0]) unlink(claim); }

static void write_claim(void) {
    drop_claim();
    snprintf(claim, sizeof claim, "%s/%s.%d.%llu", claims, visible[0], (int)getpid(), taken_mib);
    FILE *file = fopen(claim, "w");
    if (!file) return;
    fprintf(file, is_client ? "M %s" : "C", pipe_path);
    fclose(file);
}

int cuInit(unsigned flags) {
    (void)flags;
    read_facts();
    char wanted[1024];
    snprintf(wanted, sizeof wanted, "%s", getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "");
    for (char *each = strtok(wanted, ","); each; each = strtok(NULL, ",")) {
        int known = 0;
        for (int i = 0; i < GPUS_MAX; i++) known |= uuids[i][0] && !strcmp(uuids[i], each);
        if (!known) break; /* Those before the first unknown one are seen. */
        snprintf(visible[count++], 64, "%.63s", each);
    }
    const char *named = getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (!named) named = getenv("STAND_IN_PIPE");
    snprintf(pipe_path, sizeof pipe_path, "%s", named ? named : "/tmp/nvidia-mps");
    is_client = exists(pipe_path, "control");
    const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    char unit = 'M';
    if (is_client && limit && sscanf(limit, "0=%llu%c", &limit_mib, &unit) == 2 && unit == 'G') limit_mib *= 1024;
    atexit(drop_claim);
    return count ? 0 : NO_DEVICE;
}

int cuDeviceGetCount(int *number) { *number = count; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }

int cuDeviceGetUuid(unsigned char *raw, int device) {
    const char *text = visible[device] + 4;
    for (int i = 0; i < 16; i++) {
        unsigned value;
        if (*text == '-') text++;
        sscanf(text, "%2x", &value);
        raw[i] = (unsigned char)value;
        text += 2;
    }
    return 0;
}

int cuDeviceGetAttribute(int *value, int which, int device) {
    (void)which, (void)device;
    const char *share = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    *value = is_client && share ? 132 * atoi(share) / 100 : 132;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    if (limit_mib < 512) return BUSY;
    *context = &count;
    taken_mib = CONTEXT_MIB;
    write_claim();
    return 0;
}

int cuCtxSetCurrent(void *context) { (void)context; return 0; }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *total = limit_mib * MIB;
    *free_bytes = (limit_mib - taken_mib) * MIB;
    return 0;
}

int cuMemAlloc_v2(void **space, size_t bytes) {
    if (taken_mib + bytes / MIB > limit_mib) return NO_MEMORY;
    taken_mib += bytes / MIB;
    *space = &count;
    write_claim();
    return 0;
}

int cuModuleLoadData(void **module, const void *text) { *module = (void *)text; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module;
    *function = (void *)(size_t)(strcmp(name, "fault") ? 1 : 2);
    return 0;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared,
                   void *stream, void **words, void **more) {
    (void)x, (void)y, (void)z, (void)a, (void)b, (void)c, (void)shared, (void)stream, (void)words, (void)more;
    if (function != (void *)(size_t)2) return 0;
    has_faulted = 1;
    char path[1024];
    snprintf(path, sizeof path, "%s/faulted", pipe_path);
    FILE *file = is_client ? fopen(path, "w") : NULL;
    if (file) fclose(file);
    return 0;
}

int cuCtxSynchronize(void) {
    usleep(1000);
    if (has_faulted) return ILLEGAL_ADDRESS;
    return is_client && exists(pipe_path, "faulted") ? LAUNCH_FAILED : 0;
}

int cuGetErrorName(int code, const char **text) { (void)code; *text = "CUDA_ERROR_STAND_IN"; return 0; }
