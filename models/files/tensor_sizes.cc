#include "models/files/tensor_sizes.h"

#include <algorithm>

namespace weft {

std::string shown_name(const TensorFile& file) {
  return file.files().empty() ? std::string("the file") : file.files().front();
}

std::vector<int64_t> TensorSizes::restored(const std::string& name, const TensorView& view,
                                           int rank) const {
  std::vector<int64_t> shape(view.shape().begin(), view.shape().end());
  if (std::ssize(shape) >= rank) return shape;
  const std::string weight = ".weight";
  if (rank >= 4 && name.ends_with(weight) && !shape.empty()) {
    const std::string bias = spelling_(name.substr(0, name.size() - weight.size()) + ".bias");
    const int64_t first = file_.contains(bias) ? file_.describe(bias).count() : 0;
    if (first > 0 && shape[0] != first && shape[0] % first == 0) {
      shape[0] /= first;
      shape.insert(shape.begin(), first);
    }
  }
  const auto ones = rank - std::ssize(shape);
  const size_t at = rank < 4 ? 0 : std::min<size_t>(2, shape.size());
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(at), static_cast<size_t>(ones), 1);
  return shape;
}

TensorView TensorSizes::shape(const std::string& name, int rank) const {
  const std::string spelled = spelling_(name);
  if (!file_.contains(spelled))
    refuse_model(shown_name(file_), spelled,
                 ", from which sizes follow where no config.json gives them, is missing");
  TensorView view = file_.describe(spelled);
  if (view.rank < rank) view = TensorView(nullptr, view.dtype, restored(name, view, rank));
  const auto legal = [&](int64_t extent) { return 1 <= extent && extent <= widest_; };
  if (view.rank != rank || !std::ranges::all_of(view.shape(), legal))
    refuse_model(shown_name(file_), spelled, " is ", view.to_string_shape(), " (legal: ", rank,
                 " dimensions of 1 to ", widest_, ")");
  return view;
}

int64_t TensorSizes::extent(const std::string& name, int dim) const {
  const std::string spelled = spelling_(name);
  const int rank = file_.contains(spelled) ? file_.describe(spelled).rank : 0;
  const int least = dim < 0 ? -dim : dim + 1;
  return shape(name, std::max(rank, least))[dim];
}

int TensorSizes::count(const std::string& list, const std::string& part) const {
  int blocks = 0;
  while (blocks < 1024 && has(list + std::to_string(blocks) + part)) ++blocks;
  return blocks;
}

int TensorSizes::heads(int64_t width, int64_t columns) const {
  if (columns < 1 || width % columns)
    refuse("heads of ", columns, " columns do not divide a width of ", width);
  return static_cast<int>(width / columns);
}

}  // namespace weft
