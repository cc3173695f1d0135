// What the kernels use of LibTorch, all of it from the stable ABI: tensors, checks, threads and calls of ATen operators.
#pragma once

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// Each loop is compiled for several instruction sets, and the dynamic linker picks one. Sanitizers cannot run inside the
// linker, so their builds, and compilers without this attribute, take the baseline.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) && !defined(PRPRODUCT_SANITIZE)
#define PRPRODUCT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PRPRODUCT_CLONES
#endif
#define PRPRODUCT_INLINE inline __attribute__((always_inline))

namespace prproduct {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Sizes = std::vector<int64_t>;

// Throws an error of one line, which reaches Python as a RuntimeError.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  message << "prproduct: ";
  ((message << parts), ...);
  throw std::runtime_error(message.str());
}

inline Sizes sizes_of(const Tensor& t) {
  auto sizes = t.sizes();
  return Sizes(sizes.begin(), sizes.end());
}

// The memory of a tensor whose dtype is known to be T.
template <class T>
T* data_of(const Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}

inline std::string text_of(const Sizes& sizes) {
  std::ostringstream text;
  for (size_t k = 0; k < sizes.size(); ++k) text << (k ? ", " : "(") << sizes[k];
  text << (sizes.empty() ? "()" : sizes.size() == 1 ? ",)" : ")");
  return text.str();
}

// Checks that the storage still holds all elements: FSDP and others resize the storage of a living tensor to 0.
inline void check_storage(const Tensor& t, const char* name) {
  int64_t bytes = 0, last = t.storage_offset();
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(t.get(), &bytes));
  auto sizes = t.sizes();
  auto strides = t.strides();
  for (size_t k = 0; k < sizes.size(); ++k) last += (sizes[k] - 1) * strides[k];
  check(t.numel() == 0 || (last + 1) * int64_t(t.element_size()) <= bytes, name, " has a storage of ", bytes,
        " bytes, which was resized");
}

inline void check_tensor(const Tensor& t, const char* name, const Sizes& shape, ScalarType dtype) {
  check(t.defined(), name, " is undefined");
  check(t.is_cpu(), name, " is not on the CPU");
  check(t.layout() == torch::headeronly::Layout::Strided, name, " is not a strided tensor");
  check(t.scalar_type() == dtype, name, " does not have the dtype of the other tensors");
  check(sizes_of(t) == shape, name, " has shape ", text_of(sizes_of(t)), ", expected ", text_of(shape));
  check_storage(t, name);
}

// Row-major strides of `sizes`.
inline Sizes contiguous_strides(const Sizes& sizes) {
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (size_t k = sizes.size(); k-- > 0; stride *= std::max<int64_t>(sizes[k], 1)) strides[k] = stride;
  return strides;
}

// Strides of (batch, channels, *spatial) with channels innermost.
inline Sizes channels_last_strides(const Sizes& sizes) {
  Sizes strides(sizes.size());
  int64_t stride = sizes[1];
  strides[1] = 1;
  for (size_t k = sizes.size(); k-- > 2; stride *= sizes[k]) strides[k] = stride;
  strides[0] = stride;
  return strides;
}

inline Tensor as_contiguous(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }

inline Tensor view_of(void* data, const Sizes& sizes, const Sizes& strides, const Tensor& like) {
  return torch::stable::from_blob(data, sizes, strides, like.device(), like.scalar_type());
}

inline Tensor new_empty(const Sizes& sizes, const Tensor& like) {
  return torch::stable::empty(sizes, like.scalar_type(), std::nullopt, like.device());
}

// Calls an ATen operator by its name and overload, and returns its outputs.
template <size_t outputs = 1, class... Arguments>
std::array<Tensor, outputs> call_aten(const char* name, const char* overload, const Arguments&... arguments) {
  std::array<StableIValue, std::max(sizeof...(Arguments), outputs)> stack{torch::stable::detail::from(arguments)...};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
  std::array<Tensor, outputs> results;
  for (size_t k = 0; k < outputs; ++k) results[k] = torch::stable::detail::to<Tensor>(stack[k]);
  return results;
}

inline Tensor mm(const Tensor& a, const Tensor& b) { return call_aten("aten::mm", "", a, b)[0]; }

// out += a @ b. Through the C shim, as the dispatcher's stable interface takes no Scalar, which `beta` and `alpha` are.
inline void add_mm(const Tensor& out, const Tensor& a, const Tensor& b) {
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(out.get(), out.get(), a.get(), b.get(), 1, 1));
}

inline void mm_out(const Tensor& out, const Tensor& a, const Tensor& b) { call_aten("aten::mm", "out", a, b, out); }

// A buffer of the calling thread, which is kept for its next operator and only grows. Fresh pages cost more than a pass
// over them: with a new tensor for the scaled gradient of every layer, a ResNet-20 took 1.5 times the native time instead
// of 1.2. No operator returns a tensor in this memory.
enum class Buffer { scaled_grad, coefficients, partial_sums, count };

template <class T>
T* workspace(Buffer buffer, int64_t count) {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  thread_local std::array<std::pair<std::unique_ptr<void, Free>, size_t>, size_t(Buffer::count)> buffers;
  auto& [memory, size] = buffers[size_t(buffer)];
  size_t needed = (size_t(count) * sizeof(T) + 63) / 64 * 64;
  if (needed > size) {
    memory.reset();
    size = 0;
    memory.reset(std::aligned_alloc(64, needed));
    check(memory != nullptr, "out of memory for a workspace of ", needed, " bytes");
    size = needed;
  }
  return static_cast<T*>(memory.get());
}

constexpr int64_t kPairWork = 16;  // the cost of a pair, which has a square root and a division, in `work` (see below)

// Runs f(begin, end) over [0, count) on torch's own threads. `work` is the cost of one index, in elements read. A thread
// gets at least `grain` elements, some 10 µs: less does not pay for waking it.
template <class F>
void parallel_for(int64_t count, int64_t work, const F& f) {
  constexpr int64_t grain = 131072;
  torch::stable::parallel_for(0, count, std::max<int64_t>(1, grain / std::max<int64_t>(work, 1)), f);
}

// The type in which numbers stored as S are computed with: float32 for half types.
template <class S>
using Working = std::conditional_t<std::is_same_v<S, double>, double, float>;

// Returns f(S{}), where S is the C++ type of `dtype`.
template <class F>
auto dispatch_dtype(ScalarType dtype, const F& f) {
  switch (dtype) {
    case ScalarType::Float: return f(float{});
    case ScalarType::Double: return f(double{});
    case ScalarType::BFloat16: return f(BFloat16{});
    case ScalarType::Half: return f(Half{});
    default: throw std::runtime_error("prproduct: grad must be float32, float64, bfloat16 or float16");
  }
}

}  // namespace prproduct
