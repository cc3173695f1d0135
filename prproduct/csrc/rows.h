// The split of a gradient whose rows are data vectors and whose columns are weight vectors.
#pragma once

#include "vectors.h"

namespace prproduct {

// Writes each vector's multiple: to[n] = from[n]/‖from[n]‖·sum(n); or adds it: to[n] = to[n]·unscale + the same.
enum class Along { write, add };

template <Along how, class S, class Inverse, class Sum>
void along_vectors(int64_t count, int64_t length, const S* from, S* to, Working<S> unscale, const Inverse& inverse,
                   const Sum& sum) {
  parallel_for(count, 3 * length, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      if constexpr (how == Along::write) multiply_along(length, from + n * length, inverse(n), sum(n), to + n * length);
      if constexpr (how == Along::add) add_along(length, from + n * length, inverse(n), sum(n), unscale, to + n * length);
    }
  });
}

// Rows are split in blocks of a fixed size, each with sums of its own for the weight vectors: results do not depend on
// the number of threads.
template <class S>
struct RowSplit {
  using T = Working<S>;
  static constexpr int64_t kBlock = 32;

  int64_t rows, out;
  StoredPairs<S> pairs;
  T scale;                       // of the stored D·g
  std::vector<T> along_rows;     // (rows,): Σ_j (L − D)·cos θ·g·‖w_j‖
  std::vector<T> along_weights;  // (out,): Σ_n (L − D)·cos θ·g·‖x_n‖

  RowSplit(int64_t rows_, int64_t out_, StoredPairs<S> pairs_)
      : rows(rows_), out(out_), pairs(pairs_), scale(storage_scale(rows_ * out_, pairs_.grad)), along_rows(rows_),
        along_weights(out_) {}

  void run(const PairLoops<T>& loops, const std::vector<Norm<T>>& norms, const WeightVectors<T>& weights) {
    int64_t blocks = (rows + kBlock - 1) / kBlock;
    T* partial = workspace<T>(Buffer::partial_sums, blocks * out);
    parallel_for(blocks, kBlock * out * kPairWork, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        T* sums = partial + block * out;
        std::fill_n(sums, out, T(0));
        for (int64_t n = block * kBlock; n < std::min(rows, (block + 1) * kBlock); ++n) {
          along_rows[n] = split_stored_row(loops, out, pairs.at(n * out), scale, norms[n], weights, 0, sums);
        }
      }
    });
    sum_blocks(blocks, partial);
  }

  void sum_blocks(int64_t blocks, const T* partial) {
    constexpr int64_t columns = 256;
    parallel_for((out + columns - 1) / columns, blocks * columns, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * columns; first < std::min(out, end * columns); first += columns) {
        int64_t size = std::min(columns, out - first);
        double sums[columns] = {};
        for (int64_t block = 0; block < blocks; ++block) {
          for (int64_t k = 0; k < size; ++k) sums[k] += partial[block * out + first + k];
        }
        std::copy_n(sums, size, along_weights.begin() + first);
      }
    });
  }

  // The corrections of dX and dW.
  template <Along how>
  void correct_input(int64_t length, const std::vector<Norm<T>>& norms, const S* input, S* grad_input) const {
    along_vectors<how>(
        rows, length, input, grad_input, 1 / scale, [&](int64_t n) { return norms[n].inverse; },
        [&](int64_t n) { return along_rows[n]; });
  }

  template <Along how>
  void correct_weight(int64_t length, const WeightVectors<T>& weights, const S* weight, S* grad_weight) const {
    along_vectors<how>(
        out, length, weight, grad_weight, 1 / scale, [&](int64_t k) { return weights.inverse[k]; },
        [&](int64_t k) { return along_weights[k]; });
  }
};

}  // namespace prproduct
