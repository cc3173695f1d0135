// The pair loop of every product, compiled once for float and for double.
#include "pair.h"

namespace prproduct {
namespace {

template <class T, class... Known>
PairLoops<T> find_loops(const ProductCall& product, std::tuple<Known...>) {
  PairLoops<T> loops;
  auto take_if_named = [&]<class Product>(Product) {
    if (product.name != Product::name) return;
    loops = {&split_row<T, Product>, &split_plane<T, Product>, Product::weight_only, T(product.parameter),
             T(product.floor)};
  };
  (take_if_named(Known{}), ...);
  check(loops.row != nullptr, "no kernel for product '", product.name, "'");
  return loops;
}

}  // namespace

template <class T>
PairLoops<T> backward_loops(const ProductCall& product) {
  return find_loops<T>(product, Products{});
}

template <class T>
PairLoops<T> forward_loops(const ProductCall& product) {
  return find_loops<T>(product, Forwards{});
}

template PairLoops<float> backward_loops<float>(const ProductCall&);
template PairLoops<double> backward_loops<double>(const ProductCall&);
template PairLoops<float> forward_loops<float>(const ProductCall&);
template PairLoops<double> forward_loops<double>(const ProductCall&);

namespace {

std::vector<std::string> product_names() {
  return std::apply([](auto... known) { return std::vector<std::string>{known.name...}; }, Products{});
}

STABLE_TORCH_LIBRARY_IMPL(prproduct, CompositeExplicitAutograd, m) {
  m.impl("product_names", TORCH_BOX(&product_names));
}

}  // namespace

}  // namespace prproduct
