// The operators of the caption reward: each checks its arguments, and then runs the loops of ngrams.h.
#include "ngrams.h"

namespace prproduct {
namespace {

// The memory of a contiguous tensor of int64 (also as keys) or float64.
template <class T>
std::span<const T> span_of(const Tensor& t, const char* name, int64_t dims = 1) {
  constexpr bool real = std::is_same_v<T, double>;
  check(t.defined() && t.is_cpu(), name, " is not on the CPU");
  check(t.layout() == torch::headeronly::Layout::Strided, name, " is not a strided tensor");
  ScalarType dtype = real ? ScalarType::Double : ScalarType::Long;
  check(t.scalar_type() == dtype, name, " must be ", real ? "float64" : "int64");
  check(t.dim() == dims, name, " has shape ", text_of(sizes_of(t)), ", expected dimensions: ", dims);
  check(t.is_contiguous(), name, " is not contiguous");
  check_storage(t, name);
  return {static_cast<const T*>(t.data_ptr()), size_t(t.numel())};
}

template <class T>
std::span<const T> span_of_size(const Tensor& t, const char* name, int64_t size) {
  auto span = span_of<T>(t, name);
  check(t.numel() == size, name, " has ", t.numel(), " elements, expected ", size);
  return span;
}

template <class T>
std::pair<Tensor, T*> new_tensor(const Sizes& sizes) {
  Tensor t = torch::stable::empty(sizes, std::is_same_v<T, double> ? ScalarType::Double : ScalarType::Long);
  return {t, static_cast<T*>(t.data_ptr())};
}

void check_tokens(Tokens tokens, const char* name) {
  bool in_range = true;
  for (int64_t token : tokens) in_range &= token >= 0 && token <= largest_token;
  check(in_range, name, " must be token ids from 0 to ", largest_token);
}

void check_partition(std::span<const int64_t> starts, int64_t size, const char* name) {
  bool ascends = !starts.empty() && std::is_sorted(starts.begin(), starts.end());
  check(ascends && starts.front() == 0 && starts.back() == size, name, " must ascend from 0 to ", size);
}

// How many keys the captions have at most.
int64_t check_captions(Tokens tokens, std::span<const int64_t> starts, const char* name) {
  check_tokens(tokens, "tokens");
  check_partition(starts, tokens.size(), name);
  int64_t count = 0;
  for (size_t c = 0; c + 1 < starts.size(); ++c) count += count_ngrams(starts[c + 1] - starts[c]);
  return count;
}

Rarities checked_rarities(const Tensor& table, const Tensor& table_rarities, double rarest) {
  auto slots = span_of<Key>(table, "table");
  check(std::has_single_bit(slots.size()), "table has ", slots.size(), " slots, expected a power of two");
  check(std::find(slots.begin(), slots.end(), empty_slot) != slots.end(), "table has no empty slot");
  return {slots, span_of_size<double>(table_rarities, "table_rarities", slots.size()), rarest};
}

// What `References::score` reads for an image. Not the starts of all images: checking those of COCO would take as long
// as scoring a batch.
void check_image(const References& references, int64_t image) {
  int64_t images = int64_t(references.image_starts.size()) - 1, captions = references.lengths.size();
  check(image >= 0 && image < images, "rows must be from 0 to ", images - 1);
  int64_t begin = references.image_starts[image], end = references.image_starts[image + 1];
  check(begin >= 0 && begin <= end && end <= captions, "image_starts must ascend from 0 to ", captions);
  check(begin < end, "image_starts has no captions for image ", image);
  for (int64_t c = begin; c < end; ++c) {
    int64_t first = references.entry_starts[c], last = references.entry_starts[c + 1], length = references.lengths[c];
    check(first >= 0 && first <= last && last <= int64_t(references.keys.size()), "entry_starts must ascend from 0 to ",
          references.keys.size());
    check(length >= 0 && length <= INT32_MAX, "lengths must be from 0 to ", INT32_MAX);
  }
}

// A hash table with the rarity of each key, and its slots' rarities; at least half of its slots are empty.
std::tuple<Tensor, Tensor> ngram_table(Tensor keys, Tensor rarities) {
  auto found = span_of<Key>(keys, "keys");
  auto values = span_of_size<double>(rarities, "rarities", found.size());
  check(std::find(found.begin(), found.end(), empty_slot) == found.end(), "keys must not be 0");
  int64_t size = int64_t(1) << std::bit_width(2 * found.size());
  auto [table, slots] = new_tensor<Key>({size});
  auto [table_rarities, slot_values] = new_tensor<double>({size});
  std::fill_n(slots, size, empty_slot);
  std::fill_n(slot_values, size, 0.0);
  for (size_t k = 0; k < found.size(); ++k) {
    size_t slot = slot_of(found[k], {slots, size_t(size)});
    slots[slot] = found[k];
    slot_values[slot] = values[k];
  }
  return {table, table_rarities};
}

// The distinct keys of each image's captions in ascending order, one image after the other.
Tensor distinct_ngrams(Tensor tokens, Tensor caption_starts, Tensor image_starts) {
  Tokens words = span_of<int64_t>(tokens, "tokens");
  auto captions = span_of<int64_t>(caption_starts, "caption_starts");
  auto images = span_of<int64_t>(image_starts, "image_starts");
  int64_t most = check_captions(words, captions, "caption_starts");
  check_partition(images, int64_t(captions.size()) - 1, "image_starts");
  auto [keys, begin] = new_tensor<Key>({most});
  Key* end = begin;
  for (size_t image = 0; image + 1 < images.size(); ++image) {
    Key* of_image = end;
    for (int64_t c = images[image]; c < images[image + 1]; ++c) {
      end += write_keys(words.subspan(captions[c], captions[c + 1] - captions[c]), end);
    }
    std::sort(of_image, end);
    end = std::unique(of_image, end);
  }
  return torch::stable::narrow(keys, 0, 0, end - begin);
}

// `References::entry_starts`, `keys`, `weights` and `norms` of the captions tokens[starts[c] : starts[c + 1]].
std::tuple<Tensor, Tensor, Tensor, Tensor> weigh_captions(Tensor tokens, Tensor starts, Tensor table,
                                                          Tensor table_rarities, double rarest) {
  Tokens words = span_of<int64_t>(tokens, "tokens");
  auto from = span_of<int64_t>(starts, "starts");
  int64_t most = check_captions(words, from, "starts"), captions = int64_t(from.size()) - 1, at = 0;
  Rarities rarities = checked_rarities(table, table_rarities, rarest);
  auto [entry_starts, first] = new_tensor<int64_t>({captions + 1});
  auto [keys, key] = new_tensor<Key>({most});
  auto [weights, weight] = new_tensor<double>({most});
  auto [norms, norm] = new_tensor<double>({captions, order});
  for (int64_t c = 0; c < captions; ++c) {
    first[c] = at;
    int64_t size = write_keys(words.subspan(from[c], from[c + 1] - from[c]), key + at);
    at += weigh({key + at, size_t(size)}, rarities, weight + at, norm + order * c).keys.size();
  }
  first[captions] = at;
  return {entry_starts, torch::stable::narrow(keys, 0, 0, at), torch::stable::narrow(weights, 0, 0, at), norms};
}

// CIDEr-D of each row of `samples`, up to and with its first `eos`, for image rows[b].
Tensor score_samples(Tensor samples, Tensor rows, int64_t eos, Tensor table, Tensor table_rarities, double rarest,
                     Tensor image_starts, Tensor lengths, Tensor entry_starts, Tensor keys, Tensor weights,
                     Tensor norms) {
  Tokens tokens = span_of<int64_t>(samples, "samples", 2);
  int64_t batch = samples.size(0), width = samples.size(1);
  auto images = span_of_size<int64_t>(rows, "rows", batch);
  check_tokens(tokens, "samples");
  check(eos >= 0 && eos <= largest_token, "eos must be a token id from 0 to ", largest_token);
  Rarities rarities = checked_rarities(table, table_rarities, rarest);
  int64_t captions = span_of<int64_t>(lengths, "lengths").size(), entries = span_of<Key>(keys, "keys").size();
  References references{
      .image_starts = span_of<int64_t>(image_starts, "image_starts"),
      .lengths = span_of<int64_t>(lengths, "lengths"),
      .entry_starts = span_of_size<int64_t>(entry_starts, "entry_starts", captions + 1),
      .keys = span_of<Key>(keys, "keys"),
      .weights = span_of_size<double>(weights, "weights", entries),
      .norms = span_of<double>(norms, "norms", 2),
  };
  Sizes shape{captions, order};
  check(sizes_of(norms) == shape, "norms has shape ", text_of(sizes_of(norms)), ", expected ", text_of(shape));
  for (int64_t image : images) check_image(references, image);

  auto [scores, score] = new_tensor<double>({batch});
  if (batch == 0) return scores;
  // Threads from some 500 samples of 16 tokens on, or 1 ms each: on a busy machine, a thread is waited for longer than
  // the 64 × 6 samples of a usual batch take.
  parallel_for(batch, order * width, [&, score = score](int64_t begin, int64_t end) {
    std::vector<Key> key(order * width);
    std::vector<double> weight(order * width);
    double norm[order];
    for (int64_t b = begin; b < end; ++b) {
      Tokens sample = tokens.subspan(b * width, width);
      auto at_eos = std::find(sample.begin(), sample.end(), eos);
      sample = sample.first(at_eos - sample.begin() + (at_eos != sample.end()));
      size_t size = write_keys(sample, key.data());
      Weighted candidate = weigh({key.data(), size}, rarities, weight.data(), norm);
      score[b] = references.score(candidate, sample.size(), images[b]);
    }
  });
  return scores;
}

STABLE_TORCH_LIBRARY_IMPL(prproduct, CPU, m) {
  m.impl("ngram_table", TORCH_BOX(&ngram_table));
  m.impl("distinct_ngrams", TORCH_BOX(&distinct_ngrams));
  m.impl("weigh_captions", TORCH_BOX(&weigh_captions));
  m.impl("score_samples", TORCH_BOX(&score_samples));
}

}  // namespace
}  // namespace prproduct
