// Loops over vectors in memory: sums of squares, adding a multiple of one to another, and half types as float32.
#pragma once

#include "pair.h"

namespace prproduct {

// Σ from². In parts of 1024: one float32 sum of a million squares would be off by 1e-4, and so would cos θ.
template <class S>
PRPRODUCT_CLONES Working<S> sum_of_squares(int64_t count, const S* from) {
  using T = Working<S>;
  double total = 0;
  for (int64_t first = 0; first < count; first += 1024) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = first; k < std::min(count, first + 1024); ++k) sum += T(from[k]) * T(from[k]);
    total += sum;
  }
  return T(total);
}

// sums[k] = Σ from[·, k]² over the rows of `from` (rows, count). In parts of 16 rows, for the same reason.
template <class S>
PRPRODUCT_CLONES void sum_squares_of_columns(int64_t rows, int64_t count, const S* from, Working<S>* sums) {
  using T = Working<S>;
  constexpr int64_t columns = 512;
  for (int64_t first = 0; first < count; first += columns) {
    int64_t size = std::min(columns, count - first);
    std::fill_n(sums + first, size, T(0));
    for (int64_t block = 0; block < rows; block += 16) {
      T partial[columns] = {};
      for (int64_t row = block; row < std::min(rows, block + 16); ++row) {
        const S* here = from + row * count + first;
#pragma omp simd
        for (int64_t k = 0; k < size; ++k) partial[k] += T(here[k]) * T(here[k]);
      }
#pragma omp simd
      for (int64_t k = 0; k < size; ++k) sums[first + k] += partial[k];
    }
  }
}

// `Norm::of` for each square; the norms replace the squares.
template <class T>
PRPRODUCT_CLONES void norms_of_squares(int64_t count, T* squares, T* inverse) {
#pragma omp simd
  for (int64_t k = 0; k < count; ++k) {
    bool positive = squares[k] > 0 && squares[k] < std::numeric_limits<T>::infinity();
    T norm = std::sqrt(positive ? squares[k] : T(1));
    squares[k] = positive ? norm : T(0);
    inverse[k] = positive ? 1 / norm : T(0);
  }
}

// max |from|
template <class S>
PRPRODUCT_CLONES Working<S> largest_of(int64_t count, const S* from) {
  using T = Working<S>;
  T largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t k = 0; k < count; ++k) {
    T size = std::abs(T(from[k]));
    largest = size > largest ? size : largest;
  }
  return largest;
}

template <class T>
PRPRODUCT_CLONES void add_to(int64_t count, const T* from, T* to) {
#pragma omp simd
  for (int64_t k = 0; k < count; ++k) to[k] += from[k];
}

// The value, rounded to the stored type. torch's own conversion to bfloat16 has a branch for NaN, which is not vectorized.
template <class S>
PRPRODUCT_INLINE S stored(Working<S> value) {
  if constexpr (std::is_same_v<S, BFloat16>) {
    uint32_t bits = std::bit_cast<uint32_t>(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
    return BFloat16(uint16_t(value == value ? rounded : 0x7fc0), BFloat16::from_bits());
  } else {
    return S(value);
  }
}

// to = unscale·to + (from·inverse)·sum: from·inverse first, as inverse·sum may overflow. `To` is S or its working type.
template <class S, class To>
PRPRODUCT_CLONES void add_along(int64_t count, const S* from, Working<S> inverse, Working<S> sum, Working<S> unscale,
                                To* to) {
  using T = Working<S>;
#pragma omp simd
  for (int64_t k = 0; k < count; ++k) to[k] = stored<To>(T(to[k]) * unscale + (T(from[k]) * inverse) * sum);
}

// to = (from·inverse)·sum
template <class S>
PRPRODUCT_CLONES void multiply_along(int64_t count, const S* from, Working<S> inverse, Working<S> sum, S* to) {
  using T = Working<S>;
#pragma omp simd
  for (int64_t k = 0; k < count; ++k) to[k] = stored<S>((T(from[k]) * inverse) * sum);
}

// `add_along` with an `inverse` of its own for every number.
template <class S>
PRPRODUCT_CLONES void add_along_each(int64_t count, const S* from, const Working<S>* inverse, Working<S> sum,
                                     Working<S> unscale, S* to) {
  using T = Working<S>;
#pragma omp simd
  for (int64_t k = 0; k < count; ++k) to[k] = stored<S>(T(to[k]) * unscale + (T(from[k]) * inverse[k]) * sum);
}

template <class S>
PRPRODUCT_CLONES void convert_in(int64_t count, const S* from, float* to) {
#pragma omp simd
  for (int64_t k = 0; k < count; ++k) to[k] = float(from[k]);
}

template <class S>
PRPRODUCT_CLONES void convert_out(int64_t count, const float* from, float scale, S* to) {
#pragma omp simd
  for (int64_t k = 0; k < count; ++k) to[k] = stored<S>(from[k] * scale);
}

// `from` in the working type: itself, or converted into `buffer`.
template <class S>
const Working<S>* as_working(int64_t count, const S* from, Working<S>* buffer) {
  if constexpr (std::is_same_v<S, Working<S>>) {
    return from;
  } else {
    convert_in(count, from, buffer);
    return buffer;
  }
}

constexpr int64_t kChunk = 512;  // elements that are converted at a time: they stay in the first-level cache

// Calls f(pairs of the working type, offset, size) for consecutive parts of `count` stored pairs. The D∘g that f writes is
// stored times `scale`, which is 1 for all types but float16.
template <class S, class F>
void in_working_type(int64_t count, PairData<S> pairs, Working<S> scale, const F& f) {
  if constexpr (std::is_same_v<S, Working<S>>) {
    f(pairs, 0, count);
  } else {
    float output[kChunk], grad[kChunk], scaled[kChunk];
    for (int64_t first = 0; first < count; first += kChunk) {
      int64_t size = std::min(kChunk, count - first);
      convert_in(size, pairs.output + first, output);
      convert_in(size, pairs.grad + first, grad);
      f(PairData<float>{output, grad, scaled}, first, size);
      convert_out(size, scaled, scale, pairs.scaled + first);
    }
  }
}

// `split_row` of stored pairs: one data vector with the first `count` weight vectors.
template <class S>
Working<S> split_stored_row(const PairLoops<Working<S>>& loops, int64_t count, PairData<S> pairs, Working<S> scale,
                            Norm<Working<S>> x, const WeightVectors<Working<S>>& weights, Working<S>* along_weight) {
  Working<S> sum = 0;
  in_working_type(count, pairs, scale, [&](auto data, int64_t first, int64_t size) {
    sum += loops.row(size, data, x, weights, first, along_weight + first, loops.floor, loops.parameter);
  });
  return sum;
}

// float16 ends at 65504, and built-in gains at 1/√floor = 16: near-parallel vectors make D∘g large before the correction
// takes most of it back. So D∘g is stored as a 16th, unless it is too small to lose bits by that.
template <class S>
Working<S> storage_scale(int64_t count, const S* grad) {
  if constexpr (std::is_same_v<S, Half>) return largest_of(count, grad) > 1.0f / 256 ? 1.0f / 16 : 1.0f;
  return 1;
}

}  // namespace prproduct
