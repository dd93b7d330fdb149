// Reads the binary's own symbol table: the kernels' names, and the places of static shared memory.
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

#include "tests/cuda/machine.h"

namespace weft::emulated {

namespace {

struct Symbol {
  std::string_view name, file;  // file: only for local symbols
  unsigned char type;
  uintptr_t address;
  size_t bytes;
  bool zeroed;  // in zero-initialised memory
};

// Calls `meet` for every symbol, or not at all if the binary is stripped.
void for_symbols(const std::function<void(const Symbol&)>& meet) {
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  struct stat info {};
  if (file < 0 || fstat(file, &info) != 0) return;
  void* const mapped = mmap(nullptr, info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return;
  uintptr_t loaded_at = 0;  // the first object is the program
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* out) {
        *static_cast<uintptr_t*>(out) = object->dlpi_addr;
        return 1;
      },
      &loaded_at);
  const char* const base = static_cast<const char*>(mapped);
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(base);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(base + header.e_shoff);
  for (int s = 0; s < header.e_shnum; ++s) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(base + sections[s].sh_offset);
    const char* names = base + sections[sections[s].sh_link].sh_offset;
    std::string_view source;
    for (size_t i = 0; i < sections[s].sh_size / sizeof(Elf64_Sym); ++i) {
      const Elf64_Sym& symbol = symbols[i];
      const auto type = static_cast<unsigned char>(ELF64_ST_TYPE(symbol.st_info));
      if (type == STT_FILE) source = names + symbol.st_name;
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= header.e_shnum) continue;
      meet({.name = names + symbol.st_name,
            .file = ELF64_ST_BIND(symbol.st_info) == STB_LOCAL ? source : "",
            .type = type,
            .address = loaded_at + symbol.st_value,
            .bytes = symbol.st_size,
            .zeroed = sections[symbol.st_shndx].sh_type == SHT_NOBITS});
    }
  }
  munmap(mapped, info.st_size);
}

}  // namespace

std::string function_at(const void* address) {
  std::string name;
  for_symbols([&](const Symbol& symbol) {
    if (symbol.type == STT_FUNC && symbol.address == reinterpret_cast<uintptr_t>(address))
      name = symbol.name;
  });
  char* const readable = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, nullptr);
  if (readable) name = readable;
  std::free(readable);
  return name.empty() ? "?" : name;
}

// __shared__ is compiled as "static": a zero-initialised variable of a function in a .cu file,
// without the guard of variables with a constructor.
std::vector<std::span<char>> find_static_shared() {
  std::vector<std::pair<std::string, std::span<char>>> found;
  std::set<std::string> guarded;
  for_symbols([&](const Symbol& symbol) {
    if (symbol.type != STT_OBJECT || !symbol.zeroed || !symbol.file.ends_with(".cu")) return;
    if (symbol.name.starts_with("_ZGVZ")) guarded.insert("_Z" + std::string(symbol.name.substr(4)));
    if (symbol.name.starts_with("_ZZ"))
      found.push_back(
          {std::string(symbol.name), {reinterpret_cast<char*>(symbol.address), symbol.bytes}});
  });
  std::vector<std::span<char>> shared;
  for (const auto& [name, bytes] : found)
    if (!guarded.contains(name)) shared.push_back(bytes);
  return shared;
}

}  // namespace weft::emulated
