// CUDA's runtime for a program without a GPU (machine_code_driver.h): it writes down what it is asked to do.
// Standard input:   device ATTRIBUTE VALUE | kernel NAME COUNT SIZE... | set FIELD VALUE     one on a line
// Standard output:  memset VALUE BYTES
//                   launch NAME GRID[3] BLOCK[3] SHARED COUNT {ATTRIBUTE BYTES}... COUNT ARGUMENT...
//                   (values of attributes and arguments in hexadecimal), then: status NUMBER
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

extern "C" const char __executable_start, end;  // by the linker: where this program begins and ends

namespace {

std::map<int, int> device;                                   // cudaDeviceAttr to value
std::map<std::string, std::vector<size_t>> parameter_sizes;  // of each kernel
std::map<std::string, std::string> values;
std::map<const void*, std::string>& kernel_names() {  // filled before main
  static std::map<const void*, std::string> names;
  return names;
}

[[noreturn]] void fail(const std::string& why) {
  std::cerr << why << "\n";
  std::exit(1);
}

const std::string& value(const char* name) {
  const auto found = values.find(name);
  if (found == values.end()) fail(std::string("a call of this solution has a field that was not told: ") + name);
  return found->second;
}

void print_bytes(const void* at, size_t bytes) {
  std::printf(" 0x");
  for (size_t i = 0; i < bytes; ++i) std::printf("%02x", static_cast<const unsigned char*>(at)[i]);
}

// Without addresses of this program, such as those of texts, which mean nothing to a kernel and are others in every
// run.
void print_argument(const void* at, size_t bytes) {
  std::vector<char> copy(static_cast<const char*>(at), static_cast<const char*>(at) + bytes);
  for (size_t i = 0; i + sizeof(uintptr_t) <= bytes; i += sizeof(uintptr_t)) {
    uintptr_t word;
    std::memcpy(&word, &copy[i], sizeof(word));
    if (word >= reinterpret_cast<uintptr_t>(&__executable_start) && word < reinterpret_cast<uintptr_t>(&end))
      std::memset(&copy[i], 0, sizeof(word));
  }
  print_bytes(copy.data(), bytes);
}

void read_input() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what, name;
    words >> what >> name;
    if (what == "device") {
      words >> device[std::stoi(name)];
    } else if (what == "kernel") {
      size_t count = 0;
      words >> count;
      parameter_sizes[name].resize(count);
      for (size_t& size : parameter_sizes[name]) words >> size;
    } else {
      words >> values[name];
    }
    if (!words) fail("not understood: " + line);
  }
}

}  // namespace

namespace machine_code {

int64_t number(const char* name) { return std::stoll(value(name)); }
double real(const char* name) { return std::stod(value(name)); }
int64_t make_call(int byte);

}  // namespace machine_code

extern "C" {
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  kernel_names()[host] = name;
}
// Of launches by <<<>>>, which these sources do not have; the compiler refers to them all the same.
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t) { fail("a launch by <<<>>> is not understood"); }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorNotSupported; }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return cudaErrorNotSupported; }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const auto found = device.find(attribute);
  if (found == device.end())
    fail("the solution asks for a device attribute that was not told: " + std::to_string(attribute));
  *value = found->second;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int value) {
  return value <= device[cudaDevAttrMaxSharedMemoryPerBlockOptin] ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMemsetAsync(void*, int value, size_t bytes, cudaStream_t) {
  std::printf("memset %d %zu\n", value, bytes);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  const std::string& name = kernel_names()[kernel];
  const auto sizes = parameter_sizes.find(name);
  if (sizes == parameter_sizes.end()) fail("launches a kernel that was not told: " + name);
  const dim3 grid = config->gridDim, block = config->blockDim;
  std::printf("launch %s %u %u %u %u %u %u %zu", name.c_str(), grid.x, grid.y, grid.z, block.x, block.y, block.z,
              config->dynamicSmemBytes);
  std::printf(" %u", config->numAttrs);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    std::printf(" %d", static_cast<int>(config->attrs[i].id));
    print_bytes(&config->attrs[i].val, sizeof(config->attrs[i].val));
  }
  std::printf(" %zu", sizes->second.size());
  for (size_t i = 0; i < sizes->second.size(); ++i) print_argument(arguments[i], sizes->second[i]);
  std::printf("\n");
  return cudaSuccess;
}
}

// Its one argument is the byte that make_call fills the stack with.
int main(int, char** arguments) {
  read_input();
  std::printf("status %lld\n", static_cast<long long>(machine_code::make_call(std::atoi(arguments[1]))));
}
