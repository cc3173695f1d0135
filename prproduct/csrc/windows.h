// A convolution's windows, and sums over them: ops/windows.py in C++.
//
// All sums are made in a frame: one padded plane of the dense side, which is the input, or the output of a transposed
// convolution. There a tap of the kernel is a constant offset, so that a sum over windows is a sum of shifted frames. The
// window side, which is the other one, has an element for each window; in the frame it lies where that window begins.
#pragma once

#include "vectors.h"

namespace prproduct {

using Extent = std::array<int64_t, 3>;  // depth, height, width; 1 (or no padding) for axes that a convolution lacks

inline int64_t numel_of(const Extent& extent) { return extent[0] * extent[1] * extent[2]; }

struct Frame {
  Extent dense, windows;  // sizes of the two sides
  Extent kernel, stride, padding, dilation;
  Extent size{}, pitch{};  // of the frame: its sizes and strides

  // Computes the size and the pitch from all the others.
  void lay_out() {
    double numel = 1;
    for (int a = 0; a < 3; ++a) {
      size[a] = dense[a] + 2 * padding[a];
      numel *= double(size[a]);
    }
    check(numel < double(int64_t(1) << 40), "a padded plane of ", numel, " numbers is too large");
    pitch = {size[1] * size[2], size[2], 1};
  }

  int64_t numel() const { return numel_of(size); }
  int64_t offset_of_tap(int64_t d, int64_t h, int64_t w) const {
    return d * dilation[0] * pitch[0] + h * dilation[1] * pitch[1] + w * dilation[2] * pitch[2];
  }

  // Calls f(offset in the frame, offset in the side, length) for every row of the dense side, or of the window side. There
  // neighbours lie stride[2] apart in the frame.
  template <class F>
  void for_each_dense_row(const F& f) const {
    for (int64_t d = 0; d < dense[0]; ++d) {
      for (int64_t h = 0; h < dense[1]; ++h) {
        f((d + padding[0]) * pitch[0] + (h + padding[1]) * pitch[1] + padding[2], (d * dense[1] + h) * dense[2],
          dense[2]);
      }
    }
  }
  template <class F>
  void for_each_window_row(const F& f) const {
    for (int64_t d = 0; d < windows[0]; ++d) {
      for (int64_t h = 0; h < windows[1]; ++h) {
        f(d * stride[0] * pitch[0] + h * stride[1] * pitch[1], (d * windows[1] + h) * windows[2], windows[2]);
      }
    }
  }

  template <class T>
  void place_dense(const T* from, T* frame) const {
    std::fill_n(frame, numel(), T(0));
    for_each_dense_row([&](int64_t at, int64_t first, int64_t count) { std::copy_n(from + first, count, frame + at); });
  }
  template <class T>
  void take_dense(const T* frame, T* to) const {
    for_each_dense_row([&](int64_t at, int64_t first, int64_t count) { std::copy_n(frame + at, count, to + first); });
  }
  template <class T>
  void place_windows(const T* from, T* frame) const {
    std::fill_n(frame, numel(), T(0));
    for_each_window_row([&](int64_t at, int64_t first, int64_t count) {
      for (int64_t k = 0; k < count; ++k) frame[at + k * stride[2]] = from[first + k];
    });
  }
  template <class T>
  void take_windows(const T* frame, T* to) const {
    for_each_window_row([&](int64_t at, int64_t first, int64_t count) {
      for (int64_t k = 0; k < count; ++k) to[first + k] = frame[at + k * stride[2]];
    });
  }
};

// Sums of shifted frames, with memory for two frames; the result replaces the first.
template <class T>
struct WindowSums {
  const Frame& frame;
  std::vector<T> first, second;

  explicit WindowSums(const Frame& frame_) : frame(frame_), first(frame_.numel()), second(frame_.numel()) {}

  // windows[o] = Σ of `dense` over window o
  void gather(const T* dense, T* windows) {
    frame.place_dense(dense, first.data());
    sum_taps([](int64_t count, int64_t offset, const T* from, T* to) {
      add_to(count - offset, from + offset, to);
    });
    frame.take_windows(first.data(), windows);
  }

  // The transpose of `gather`: dense[i] = Σ of `windows` over the windows that cover i
  void scatter(const T* windows, T* dense) {
    frame.place_windows(windows, first.data());
    sum_taps([](int64_t count, int64_t offset, const T* from, T* to) {
      add_to(count - offset, from, to + offset);
    });
    frame.take_dense(first.data(), dense);
  }

 private:
  template <class F>
  void sum_taps(const F& add_shifted) {
    for (int a = 0; a < 3; ++a) {
      if (frame.kernel[a] == 1) continue;
      std::copy(first.begin(), first.end(), second.begin());
      for (int64_t k = 1; k < frame.kernel[a]; ++k) {
        add_shifted(frame.numel(), k * frame.dilation[a] * frame.pitch[a], first.data(), second.data());
      }
      std::swap(first, second);
    }
  }
};

}  // namespace prproduct
