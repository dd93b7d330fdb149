#include "io/weights/tensor_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "io/atomic_file.h"
#include "io/folder.h"
#include "io/json.h"
#include "io/nearest.h"
#include "io/sha256.h"
#include "io/weights/file_kind.h"
#include "io/weights/mapping.h"
#include "io/weights/safetensors_header.h"

namespace weft {
namespace fs = std::filesystem;
namespace {

struct Shard {
  std::unique_ptr<Mapping> mapping;
  uint64_t header_bytes = 0;
  SafetensorsHeader header;
};

Shard open_shard(const std::string& path) {
  Shard shard;
  shard.mapping = std::make_unique<Mapping>(path);
  const Mapping& file = *shard.mapping;
  const std::string_view bytes(file.data(), file.size());
  shard.header_bytes = safetensors_header_bytes(bytes.substr(0, kFileKindBytes), file.size(), path);
  shard.header = parse_safetensors_header(bytes.substr(8, shard.header_bytes),
                                          file.size() - 8 - shard.header_bytes, path);
  return shard;
}

// Reads the index's weight_map, by tensor name. Checks that no shard is outside the index's folder.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  // Each tensor is one value. The other fields of an index are short.
  const nlohmann::json index =
      read_json_file(path, JsonDialect::kPython, {.values = kMaxTensors + 10'000});
  const nlohmann::json& entries = json_field(index, "weight_map", path);
  if (!entries.is_object() || entries.empty())
    refuse_file(path, "\"weight_map\" must be an object of tensor name to file name, not empty");
  std::map<std::string, std::string> map;
  for (const auto& [name, shard] : entries.items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : std::string();
    if (file.empty() || file.find_first_of(std::string_view("/\\\0", 3)) != file.npos ||
        file.find("..") != file.npos || file.size() > 255)
      refuse_file(
          path,
          "\"weight_map\" maps " + quoted_name(name) + " to " +
              shard.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 120) +
              ", must be the name of a file in the same folder");
    map.emplace(name, file);
  }
  return map;
}

// The shards of an index that are not beside it: "a, b".
std::string missing_shards(const std::string& index,
                           const std::map<std::string, std::string>& map) {
  std::set<std::string> absent;
  for (const auto& [name, file] : map)
    if (!fs::exists(fs::path(index).parent_path() / file)) absent.insert(quoted_name(file));
  return listed(absent).substr(0, 1000);
}

// Finds the weight file of a component folder. Standard names come first, as in diffusers and
// transformers when no variant is requested.
std::string find_in_folder(const std::string& folder) {
  std::vector<std::string> indexes, singles, pickles;
  std::vector<std::string> all;
  const int error = list_folder(folder, all);
  for (const std::string& name : all) {
    if (name.starts_with('.')) continue;
    if (name.ends_with(".safetensors.index.json")) indexes.push_back(name);
    if (name.ends_with(".safetensors")) singles.push_back(name);
    for (const char* suffix : {".bin", ".pth", ".pt", ".ckpt"})
      if (name.ends_with(suffix)) pickles.push_back(name);
  }
  if (error) refuse_file(folder, std::string("cannot be listed: ") + std::strerror(error));
  // An index whose shards are gone may lie beside a whole file.
  if (indexes.size() == 1 && !singles.empty()) {
    const std::string index = (fs::path(folder) / indexes[0]).string();
    const std::map<std::string, std::string> map = read_weight_map(index);
    const auto is_shard = [&](const std::string& name) {
      return std::ranges::any_of(map, [&](const auto& entry) { return entry.second == name; });
    };
    const bool whole = !std::ranges::all_of(singles, is_shard);
    if (whole && !missing_shards(index, map).empty()) {
      indexes.clear();
      std::erase_if(singles, is_shard);
    }
  }
  for (auto* names : {&indexes, &singles}) {
    std::sort(names->begin(), names->end());
    const std::string tail = names == &indexes ? ".safetensors.index.json" : ".safetensors";
    for (const char* stem : {"diffusion_pytorch_model", "model"})
      if (std::binary_search(names->begin(), names->end(), stem + tail))
        return (fs::path(folder) / (stem + tail)).string();
    if (names->size() == 1) return (fs::path(folder) / names->front()).string();
    if (names->size() > 1) {
      std::string list = listed(*names);
      if (list.size() > 300) list = list.substr(0, 300) + "...";
      refuse_file(folder, "holds several weight files (" + list +
                              "); name one of them, or add the index that joins them");
    }
  }
  if (!pickles.empty())
    refuse_file(folder,
                "holds no .safetensors file; " + pickles.front() +
                    " is a pickle, which is never read: convert it or download a safetensors "
                    "copy");
  refuse_file(folder, "holds no .safetensors file and no .safetensors.index.json");
}

TensorView entry_view(const TensorEntry& entry) {
  return TensorView(nullptr, entry.dtype,
                    std::span<const int64_t>(entry.extent.data(), entry.rank));
}

}  // namespace

struct TensorFile::Impl {
  struct Place {
    uint32_t shard, entry;
  };
  std::vector<Shard> shards;
  std::vector<std::string> names, files;  // names are sorted; places[i] belongs to names[i]
  std::vector<Place> places;
  size_t bytes = 0;
  std::atomic<uint64_t> bytes_read{0};
  Fill fill;  // fills generated tensors; empty for files
  Part part;  // computes a part of derived tensors, which are generated ones
  std::shared_ptr<const StoredTensors> stored_tensors;
  std::string origin;  // header_hash of the file from which they are derived
  std::string format = "safetensors";
  std::map<std::string, std::string, std::less<>> stored;  // types of derived tensors
  std::map<std::string, std::string> unread;               // tensors of types that are not read
  // Per generated tensor: the number of views in use. Ranks that are threads share a TensorFile.
  struct InUse {
    bool present = false;
    int views = 0;
  };
  std::vector<InUse> in_use;
  std::mutex making;

  // Returns a view of the tensor's data. For generated tensors, `making` must be locked.
  TensorView data_of(const Place& place) {
    const Shard& shard = shards[place.shard];
    const TensorEntry& entry = shard.header.tensors[place.entry];
    TensorView view = entry_view(entry);
    view.data = shard.mapping->data() + (fill ? 0 : 8 + shard.header_bytes) + entry.begin;
    if (fill && !in_use[place.entry].present) fill(entry.name, view);
    if (fill) in_use[place.entry].present = true;
    return view;
  }

  // Reads `out`, which has one dimension, from the value `first` of a tensor on.
  void read_run(const Place& place, uint64_t first, const TensorView& out) {
    const Shard& shard = shards[place.shard];
    const TensorEntry& entry = shard.header.tensors[place.entry];
    if (part) return part(entry.name, static_cast<int64_t>(first), out);
    std::unique_lock lock(making, std::defer_lock);
    if (fill) {
      lock.lock();
      data_of(place);
    }
    const uint64_t at = (fill ? 0 : 8 + shard.header_bytes) + entry.begin;
    shard.mapping->read(at + first * size_of(out.dtype), out.bytes(), static_cast<char*>(out.data),
                        entry.name);
  }

  // Releases one view of the generated tensor at `data`. Returns whether it was the last.
  bool last_view(const void* data) {
    const auto& tensors = shards[0].header.tensors;
    const char* base = shards[0].mapping->data();
    for (size_t i = 0; i < tensors.size(); ++i)
      if (data >= base + tensors[i].begin && data < base + tensors[i].end) {
        InUse& use = in_use[i];
        if (--use.views > 0) return false;
        use = {};
        return true;
      }
    return false;
  }

  const Place& place(std::string_view name) const {
    const ptrdiff_t index = find(name);
    CHECK(index >= 0, "no tensor", name);
    return places[index];
  }

  // Returns the index of a name, or -1.
  ptrdiff_t find(std::string_view name) const {
    const auto it = std::lower_bound(names.begin(), names.end(), name);
    return it != names.end() && *it == name ? it - names.begin() : -1;
  }

  void add_shard(Shard shard) {
    files.push_back(shard.mapping->path());
    for (const TensorEntry& tensor : shard.header.tensors) bytes += tensor.end - tensor.begin;
    unread.insert(shard.header.unread.begin(), shard.header.unread.end());
    shards.push_back(std::move(shard));
  }

  void add_single(Shard shard) {
    add_shard(std::move(shard));
    const auto& tensors = shards[0].header.tensors;
    for (uint32_t i = 0; i < tensors.size(); ++i) {
      names.push_back(tensors[i].name);
      places.push_back({0, i});
    }
  }

  // Gives the tensors of a file their names. Two may not have the same.
  void rename(const Renaming& renamed) {
    std::map<std::string, Place> kept;
    for (size_t i = 0; i < names.size(); ++i)
      if (const std::string name = renamed(names[i]); !name.empty())
        if (!kept.emplace(name, places[i]).second)
          refuse_file(files.front(), "two tensors are called " + quoted_name(name) +
                                         ", one of them spelled " + quoted_name(names[i]));
    names.clear();
    places.clear();
    for (const auto& [name, place] : kept) {
      names.push_back(name);
      places.push_back(place);
    }
    for (const auto& [name, type] : std::exchange(unread, {}))
      if (const std::string own = renamed(name); !own.empty()) unread.emplace(own, type);
  }

  void load_index(const std::string& path) {
    const std::map<std::string, std::string> map = read_weight_map(path);
    std::vector<std::string> shard_names;
    for (const auto& [name, file] : map) shard_names.push_back(file);
    std::sort(shard_names.begin(), shard_names.end());
    shard_names.erase(std::unique(shard_names.begin(), shard_names.end()), shard_names.end());

    if (const std::string absent = missing_shards(path, map); !absent.empty())
      refuse_file(path, "these shards are missing: " + absent + "; the download is incomplete");
    const fs::path folder = fs::path(path).parent_path();
    for (const std::string& file : shard_names) add_shard(open_shard((folder / file).string()));
    place_all(map, shard_names, path);
  }

  // Places all tensors. The index and the shards must list the same ones.
  void place_all(const std::map<std::string, std::string>& map,
                 const std::vector<std::string>& shard_names, const std::string& path) {
    std::map<std::string_view, Place> found;
    std::string faults;
    size_t fault_count = 0;
    auto note = [&](const std::string& fault) {
      if (++fault_count <= 10) faults += (faults.empty() ? "" : "; ") + fault;
    };
    for (uint32_t s = 0; s < shards.size(); ++s) {
      const auto& tensors = shards[s].header.tensors;
      for (uint32_t i = 0; i < tensors.size(); ++i) {
        const auto mapped = map.find(tensors[i].name);
        const auto [it, fresh] = found.emplace(tensors[i].name, Place{s, i});
        if (!fresh)
          note(quoted_name(tensors[i].name) + " stands in " + shard_names[it->second.shard] +
               " and in " + shard_names[s]);
        else if (mapped == map.end())
          note(quoted_name(tensors[i].name) + " of " + shard_names[s] + " is not in the index");
        else if (mapped->second != shard_names[s])
          note(quoted_name(tensors[i].name) + " is mapped to " + mapped->second +
               " but stands in " + shard_names[s]);
      }
    }
    for (const auto& [name, file] : map) {
      const auto it = found.find(name);
      if (it == found.end()) {
        if (!unread.contains(name)) note(quoted_name(name) + " is missing from " + file);
        continue;
      }
      names.push_back(name);
      places.push_back(it->second);
    }
    if (fault_count > 10) faults += "; and " + std::to_string(fault_count - 10) + " more";
    if (fault_count > 0) refuse_file(path, "index and shards disagree: " + faults);
  }
};

TensorFile::TensorFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TensorFile::TensorFile(TensorFile&&) noexcept = default;
TensorFile& TensorFile::operator=(TensorFile&&) noexcept = default;
TensorFile::~TensorFile() = default;

TensorFile TensorFile::open(const std::string& path) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  const std::string file = folder ? find_in_folder(path) : path;
  if (!fs::exists(file, error)) refuse_file(file, "no such file");
  auto impl = std::make_unique<Impl>();
  if (file.ends_with(".index.json"))
    impl->load_index(file);
  else
    impl->add_single(open_shard(file));
  return TensorFile(std::move(impl));
}

void TensorFile::rename(const Renaming& renamed) { impl_->rename(renamed); }
const std::vector<std::string>& TensorFile::names() const { return impl_->names; }
bool TensorFile::contains(std::string_view name) const { return impl_->find(name) >= 0; }
const std::map<std::string, std::string>& TensorFile::unread() const { return impl_->unread; }

TensorFile TensorFile::generated(const std::vector<Generated>& tensors, Fill fill) {
  CHECK(fill, "generated tensors need a function that fills them");
  auto impl = std::make_unique<Impl>();
  Shard shard;
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint64_t at = 0;
  for (const Generated& tensor : tensors) {
    TensorEntry entry{.name = tensor.name, .dtype = tensor.dtype};
    entry.rank = static_cast<int>(tensor.shape.size());
    CHECK(entry.rank <= kMaxRank, tensor.name, "rank", entry.rank);
    std::copy(tensor.shape.begin(), tensor.shape.end(), entry.extent.begin());
    entry.begin = at;  // each has whole pages, so that it can be dropped alone
    entry.end = at + entry_view(entry).bytes();
    at = (entry.end + page - 1) / page * page;
    shard.header.tensors.push_back(std::move(entry));
  }
  std::sort(shard.header.tensors.begin(), shard.header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  shard.mapping = std::make_unique<Mapping>(at);
  impl->fill = std::move(fill);
  impl->in_use.resize(tensors.size());
  impl->add_single(std::move(shard));
  return TensorFile(std::move(impl));
}

TensorFile TensorFile::derived(const std::vector<Generated>& tensors, Part part, Origin origin,
                               std::shared_ptr<const StoredTensors> stored) {
  TensorFile file = generated(tensors, [part](const std::string& name, const TensorView& out) {
    part(name, 0, TensorView(out.data, out.dtype, {out.count()}));
  });
  file.impl_->part = std::move(part);
  file.impl_->stored_tensors = std::move(stored);
  for (const Generated& tensor : tensors)
    if (!tensor.stored.empty()) file.impl_->stored[tensor.name] = tensor.stored;
  file.impl_->format = std::move(origin.format);
  file.impl_->files = std::move(origin.files);
  file.impl_->shards[0].header.metadata = std::move(origin.metadata);
  file.impl_->origin = std::move(origin.header_hash);
  file.impl_->bytes = origin.bytes;
  file.impl_->unread = std::move(origin.unread);
  return file;
}

TensorView TensorFile::view(std::string_view name) const {
  const Impl::Place place = impl_->place(name);
  impl_->shards[place.shard].mapping->check_size();
  if (!impl_->fill) return impl_->data_of(place);
  const std::lock_guard lock(impl_->making);
  const TensorView made = impl_->data_of(place);
  ++impl_->in_use[place.entry].views;
  return made;
}

TensorView TensorFile::describe(std::string_view name) const {
  const Impl::Place place = impl_->place(name);
  return entry_view(impl_->shards[place.shard].header.tensors[place.entry]);
}

bool TensorFile::is_derived() const { return impl_->part != nullptr; }

std::string TensorFile::stored_type(std::string_view name) const {
  const auto found = impl_->stored.find(name);
  return found == impl_->stored.end() ? std::string(to_string(describe(name).dtype))
                                      : found->second;
}

const StoredTensors* TensorFile::stored() const { return impl_->stored_tensors.get(); }

std::optional<BlockType> TensorFile::blocks(std::string_view name) const {
  if (impl_->stored_tensors) return impl_->stored_tensors->blocks(std::string(name));
  return is_derived() ? std::nullopt : block_type(describe(name).dtype);
}

void TensorFile::read_blocks(std::string_view name, int64_t first, const TensorView& out) const {
  impl_->bytes_read += out.bytes();
  if (impl_->stored_tensors)
    return impl_->stored_tensors->read_blocks(std::string(name), first, out);
  const DType dtype = describe(name).dtype;
  const auto size = static_cast<int64_t>(size_of(dtype));
  impl_->read_run(impl_->place(name), static_cast<uint64_t>(first),
                  TensorView(out.data, dtype, {out.count() / size}));
}

const std::string& TensorFile::format() const { return impl_->format; }

void TensorFile::read(std::string_view name, std::span<const int64_t> begin, const TensorView& out,
                      std::span<const int64_t> shape) const {
  const Impl::Place place = impl_->place(name);
  TensorView all = entry_view(impl_->shards[place.shard].header.tensors[place.entry]);
  if (!shape.empty()) {
    const int64_t count = all.count();
    all = TensorView(nullptr, all.dtype, shape);
    CHECK(all.count() == count, name, all.to_string_shape());
  }
  CHECK(out.rank == all.rank && begin.size() == static_cast<size_t>(out.rank) &&
            out.dtype == all.dtype && out.contiguous(),
        name, out.to_string_shape());
  for (int i = 0; i < out.rank; ++i)
    CHECK(begin[i] >= 0 && begin[i] + out[i] <= all[i], name, "dim", i, "begin", begin[i],
          out.to_string_shape(), "of", all[i]);
  if (out.count() == 0) return;

  // The box is read in contiguous runs, one per index of the dimensions before `cut`, the last
  // dimension that is not taken whole.
  int cut = out.rank - 1;
  while (cut > 0 && out[cut] == all[cut]) --cut;
  const uint64_t size = size_of(out.dtype);
  std::array<uint64_t, kMaxRank> stride{};  // bytes between elements in the file
  uint64_t step = size, run = size;
  for (int i = out.rank - 1; i >= 0; --i) {
    stride[i] = step;
    step *= static_cast<uint64_t>(all[i]);
    if (i >= cut) run *= static_cast<uint64_t>(out[i]);
  }
  uint64_t at = 0;
  for (int i = 0; i < out.rank; ++i) at += static_cast<uint64_t>(begin[i]) * stride[i];
  std::array<int64_t, kMaxRank> index{};
  for (uint64_t done = 0; done < out.bytes(); done += run) {
    uint64_t offset = at;
    for (int i = 0; i < cut; ++i) offset += static_cast<uint64_t>(index[i]) * stride[i];
    impl_->read_run(place, offset / size,
                    TensorView(static_cast<char*>(out.data) + done, out.dtype,
                               {static_cast<int64_t>(run / size)}));
    for (int i = cut - 1; i >= 0 && ++index[i] == out[i]; --i) index[i] = 0;
  }
  impl_->bytes_read += out.bytes();
}

void TensorFile::read_run(std::string_view name, int64_t first, const TensorView& out) const {
  const Impl::Place place = impl_->place(name);
  const TensorView all = entry_view(impl_->shards[place.shard].header.tensors[place.entry]);
  CHECK(out.rank == 1 && out.dtype == all.dtype && out.contiguous() && first >= 0 &&
            first + out.count() <= all.count(),
        name, first, out.to_string_shape(), "of", all.to_string_shape());
  if (out.count() == 0) return;
  impl_->read_run(place, static_cast<uint64_t>(first), out);
  impl_->bytes_read += out.bytes();
}

Tensor TensorFile::read(std::string_view name, int dim, int64_t begin, int64_t count) const {
  const Impl::Place place = impl_->place(name);
  const TensorEntry& entry = impl_->shards[place.shard].header.tensors[place.entry];
  CHECK(dim >= 0 && dim < entry.rank && count >= 0, name, "dim", dim, "count", count);
  std::array<int64_t, kMaxRank> from{}, shape{};
  std::copy_n(entry.extent.begin(), entry.rank, shape.begin());
  from[dim] = begin;
  shape[dim] = count;
  const auto rank = static_cast<size_t>(entry.rank);
  Tensor out(entry.dtype, std::span<const int64_t>(shape.data(), rank));
  read(name, {from.data(), rank}, out);
  return out;
}

uint64_t TensorFile::bytes_read() const { return impl_->bytes_read; }

const std::map<std::string, std::string>& TensorFile::metadata() const {
  return impl_->shards[0].header.metadata;
}

size_t TensorFile::bytes() const { return impl_->bytes; }
const std::vector<std::string>& TensorFile::files() const { return impl_->files; }

std::string TensorFile::header_hash() const {
  if (impl_->part) return impl_->origin;
  CHECK(!impl_->fill, "generated tensors have no header");
  Sha256 hash;
  for (const Shard& shard : impl_->shards) {
    shard.mapping->check_size();
    hash.update(shard.mapping->data(), 8 + shard.header_bytes);
    unsigned char size[8];
    for (int i = 0; i < 8; ++i)
      size[i] = static_cast<unsigned char>(shard.mapping->size() >> (8 * i));
    hash.update(size, sizeof size);
  }
  return hash.hex();
}

void TensorFile::read_ahead(std::string_view name) const {
  if (impl_->fill) return;
  constexpr uintptr_t kStep = 128 << 10;  // Linux reads ahead at most this much per call
  const TensorView view = this->view(name);
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto data = reinterpret_cast<uintptr_t>(view.data), end = data + view.bytes();
  for (uintptr_t at = data / page * page; at < end; at += kStep)
    madvise(reinterpret_cast<void*>(at), std::min(kStep, end - at), MADV_WILLNEED);
}

void TensorFile::drop_pages(const TensorView& view) const {
  if (!view.data || view.count() == 0) return;
  // For a strided view all pages from its first to its last element are dropped. The mapping is
  // read-only, so dropping a page too many costs only one more access to the page cache.
  int64_t last = 0;
  for (int i = 0; i < view.rank; ++i) last += (view.extent[i] - 1) * view.stride[i];
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t data = reinterpret_cast<uintptr_t>(view.data);
  for (const Shard& shard : impl_->shards) {
    const uintptr_t base = reinterpret_cast<uintptr_t>(shard.mapping->data());
    if (data < base || data >= base + shard.mapping->size()) continue;
    const uintptr_t begin = data / page * page;
    const uintptr_t end = data + (last + 1) * size_of(view.dtype);
    std::unique_lock lock(impl_->making, std::defer_lock);
    if (impl_->fill) {
      lock.lock();
      if (!impl_->last_view(view.data)) return;
    }
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    return;
  }
  CHECK(false, "view is not of this file:", view.to_string_shape());
}

void write_safetensors(const std::string& path,
                       const std::vector<std::pair<std::string, TensorView>>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const TensorParts& parts) {
  // Wide types come first, then names in order. With the header padded to 8 bytes, every tensor is
  // aligned.
  std::vector<const std::pair<std::string, TensorView>*> order;
  for (const auto& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const size_t x = size_of(a->second.dtype), y = size_of(b->second.dtype);
    return x != y ? x > y : a->first < b->first;
  });
  const auto spelled = [](const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata)
      header += (header.ends_with('{') ? "" : ",") + spelled(key) + ":" + spelled(value);
    header += "}";
  }
  std::map<std::string_view, int> seen;
  uint64_t at = 0;
  for (const auto* tensor : order) {
    const auto& [name, view] = *tensor;
    CHECK(++seen[name] == 1 && name != "__metadata__", "tensor name", name);
    CHECK(view.contiguous() && view.device.kind == Device::Kind::kCpu, name,
          view.to_string_shape());
    header += header == "{" ? "" : ",";
    header += spelled(name) + ":{\"dtype\":\"" + std::string(safetensors_name(view.dtype)) +
              "\",\"shape\":[";
    for (int i = 0; i < view.rank; ++i) header += (i ? "," : "") + std::to_string(view.extent[i]);
    header += "],\"data_offsets\":[" + std::to_string(at) + ",";
    at += view.bytes();
    header += std::to_string(at) + "]}";
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  CHECK(header.size() <= kMaxHeaderBytes, "header of", header.size(), "bytes");

  AtomicFile file(path);
  unsigned char size[8];
  for (int i = 0; i < 8; ++i)
    size[i] = static_cast<unsigned char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  file.write(size, sizeof size);
  file.write(header);
  const auto write = [&](const TensorView& view) { file.write(view.data, view.bytes()); };
  for (const auto* tensor : order)
    if (tensor->second.data || !parts)
      write(tensor->second);
    else
      parts(write);
  file.commit();
}

}  // namespace weft
