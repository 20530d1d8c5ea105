/* A stand-in for NVIDIA's CUDA library, for tests: the calls that cotenant's probe makes. It reads the file of
 * the stand-in for NVML, of which these facts are its own (the last one that fits counts):
 *
 *     libcuda STAGE CODE [UUID]   init, device, context, allocate, free or release answers CODE (-1: hangs;
 *                                 below: the process ends by that signal)
 *     libcuda mode N              the compute mode
 *
 * Each context that is made is a line in that file's name + ".contexts": the device, and the pipe directory.
 *
 * Build:  cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.so.1 mock_cuda.c
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int answer(const char *asked) {
    const char *path = getenv("COTENANT_MOCK_NVML"), *seen = getenv("CUDA_VISIBLE_DEVICES");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024], stage[64], uuid[96];
    int code = 0, said;
    while (file && fgets(line, sizeof line, file)) {
        int fields = sscanf(line, "libcuda %63s %d %95s", stage, &said, uuid);
        if (fields >= 2 && !strcmp(stage, asked) && (fields == 2 || (seen && !strcmp(uuid, seen)))) code = said;
    }
    if (file) fclose(file);
    while (code == -1) pause();
    if (code < 0) kill(getpid(), -code);
    return code;
}

int cuInit(unsigned flags) { (void)flags; return answer("init"); }
int cuDeviceGet(int *device, int number) { *device = number; return answer("device"); }
int cuDeviceGetAttribute(int *value, int which, int device) {
    (void)device;
    *value = which == 20 ? answer("mode") : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    char path[1024];
    const char *base = getenv("COTENANT_MOCK_NVML"), *seen = getenv("CUDA_VISIBLE_DEVICES");
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    snprintf(path, sizeof path, "%s.contexts", base ? base : "/dev/null");
    FILE *file = fopen(path, "a");
    if (file) {
        fprintf(file, "%s %s\n", seen ? seen : "all", pipe ? pipe : "unfenced");
        fclose(file);
    }
    *context = &answer;
    return answer("context");
}
int cuCtxSetCurrent(void *context) { return context == &answer ? 0 : 201; }
int cuMemAlloc_v2(unsigned long long *memory, size_t bytes) { *memory = bytes; return answer("allocate"); }
int cuMemFree_v2(unsigned long long memory) { return memory == 1024 * 1024 ? answer("free") : 1; }
int cuDevicePrimaryCtxRelease(int device) { (void)device; return answer("release"); }
int cuGetErrorString(int code, const char **text) {
    const char *known = code == 802 ? "system not yet initialized" : code == 999 ? "unknown error" : "another error";
    *text = code == 12345 ? NULL : known;
    return *text == NULL;
}
