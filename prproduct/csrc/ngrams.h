// N-grams of token ids as 64-bit keys: written, weighted and compared for the caption reward CIDEr-D, whose equation is
// in captioning/metrics/ngram_metrics.py.
//
// The key of an n-gram holds its n tokens, each plus one, in 16 bits each. Different n-grams have different keys, and
// ascending keys are ordered by n, since a key lies between 2^16(n−1) and 2^16n. So two captions are compared by
// merging two sorted lists. Tensors hold the bits of keys as int64; they are compared as uint64.
//
// Nothing here checks what it reads: ngrams.cpp does.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "stable.h"

namespace prproduct {

using Key = uint64_t;
using Tokens = std::span<const int64_t>;

constexpr Key empty_slot = 0;  // no n-gram has this key
constexpr int64_t order = 4;   // the longest n-grams
constexpr int64_t largest_token = 65534;

// n − 1 of an n-gram.
inline int order_of(Key key) { return (std::bit_width(key) - 1) / 16; }

inline int64_t count_ngrams(int64_t length) {
  int64_t count = 0;
  for (int64_t n = 0; n < order; ++n) count += std::max<int64_t>(0, length - n);
  return count;
}

// Writes the keys of all n-grams of a caption, in ascending order; returns their number.
inline int64_t write_keys(Tokens tokens, Key* keys) {
  Key* end = keys;
  for (size_t n = 1; n <= order; ++n) {
    Key* begin = end;
    for (size_t i = 0; i + n <= tokens.size(); ++i) {
      Key key = 0;
      for (size_t k = 0; k < n; ++k) key = key << 16 | Key(tokens[i + k] + 1);
      *end++ = key;
    }
    std::sort(begin, end);
  }
  return end - keys;
}

// The slot of a hash table where the search for a key begins. The number of slots is a power of two.
inline size_t first_slot_of(Key key, size_t slots) {
  constexpr Key multiplier = 0x9E3779B97F4A7C15;  // 2^64/φ spreads keys that differ in few bits (Fibonacci hashing)
  return (key * multiplier >> 32) & (slots - 1);
}

// The slot where a key is or would be. One slot at least is empty.
inline size_t slot_of(Key key, std::span<const Key> slots) {
  size_t slot = first_slot_of(key, slots.size());
  while (slots[slot] != key && slots[slot] != empty_slot) slot = (slot + 1) & (slots.size() - 1);
  return slot;
}

// log(images) − log(images with this n-gram) of the n-grams in a hash table; `rarest` = log(images) of all others.
struct Rarities {
  std::span<const Key> slots;
  std::span<const double> values;
  double rarest;

  void prefetch(Key key) const {
    size_t slot = first_slot_of(key, slots.size());
    __builtin_prefetch(slots.data() + slot);
    __builtin_prefetch(values.data() + slot);
  }

  double operator[](Key key) const {
    size_t slot = slot_of(key, slots);
    return slots[slot] == key ? values[slot] : rarest;
  }
};

// A caption's distinct keys in ascending order with their weights, count · rarity, and the norm of each order.
struct Weighted {
  std::span<const Key> keys;
  const double* weights;
  const double* norms;
};

// Sorted keys become distinct keys, in place.
inline Weighted weigh(std::span<Key> keys, const Rarities& rarities, double* weights, double* norms) {
  for (Key key : keys) rarities.prefetch(key);  // a tenth of a batch's time, when other work has filled the caches
  std::fill_n(norms, order, 0.0);
  size_t distinct = 0;
  for (size_t begin = 0, end = 0; begin < keys.size(); begin = end) {
    Key key = keys[begin];
    while (end < keys.size() && keys[end] == key) ++end;
    double weight = double(end - begin) * rarities[key];
    norms[order_of(key)] += weight * weight;
    keys[distinct] = key;
    weights[distinct++] = weight;
  }
  for (int64_t n = 0; n < order; ++n) norms[n] = std::sqrt(norms[n]);
  return {keys.first(distinct), weights, norms};
}

// Σ over n of Σ_g min(c_g, r_g)·r_g / (‖c‖‖r‖).
inline double similarity(const Weighted& candidate, const Weighted& reference) {
  double common[order] = {};
  for (size_t c = 0, r = 0; c < candidate.keys.size() && r < reference.keys.size();) {
    Key key = candidate.keys[c], other = reference.keys[r];
    if (key == other) {
      common[order_of(key)] += std::min(candidate.weights[c], reference.weights[r]) * reference.weights[r];
    }
    c += key <= other;  // not a branch: every second one would be mispredicted
    r += other <= key;
  }
  double total = 0;
  for (int64_t n = 0; n < order; ++n) {
    double product = candidate.norms[n] * reference.norms[n];
    total += product != 0 ? common[n] / product : common[n];
  }
  return total;
}

// The weighted references of all images.
struct References {
  std::span<const int64_t> image_starts;  // (images + 1,)
  std::span<const int64_t> lengths;       // (captions,), in tokens
  std::span<const int64_t> entry_starts;  // (captions + 1,)
  std::span<const Key> keys;              // (entries,)
  std::span<const double> weights;        // (entries,)
  std::span<const double> norms;          // (captions, order)

  Weighted operator[](int64_t caption) const {
    size_t begin = entry_starts[caption], size = entry_starts[caption + 1] - begin;
    return {keys.subspan(begin, size), weights.data() + begin, norms.data() + order * caption};
  }

  // CIDEr-D of a candidate of `length` tokens for an image.
  double score(const Weighted& candidate, int64_t length, int64_t image) const {
    constexpr double sigma = 6, scale = 10;
    int64_t begin = image_starts[image], end = image_starts[image + 1];
    double total = 0;
    for (int64_t c = begin; c < end; ++c) {
      int64_t bigrams = std::max<int64_t>(0, length - 1), others = std::max<int64_t>(0, lengths[c] - 1);
      double delta = double(bigrams - others);
      total += similarity(candidate, (*this)[c]) * std::exp(-(delta * delta) / (2 * sigma * sigma));
    }
    return scale * total / double(order * (end - begin));
  }
};

}  // namespace prproduct
