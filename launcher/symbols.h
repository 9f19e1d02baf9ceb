// Names of functions in this process, read from the files it is made of: also of those that the dynamic linker does not
// list, and without asking it, since one of the threads may stand still inside of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ananke {

class Symbols {
 public:
  Symbols();  // what is mapped now

  // "ananke::Pass::run(...) (libananke.so)"; "libc.so.6+0x9f2a1" where the file tells no name; the number alone where
  // nothing is mapped. Reads a file when it is asked for one of its addresses first.
  std::string name(std::uintptr_t address);

 private:
  struct Mapping {
    std::uintptr_t begin, end;
    std::uint64_t offset;
    std::string file;
  };
  struct Function {
    std::uint64_t begin, size;
    std::string name;
  };
  struct File {
    struct Segment {
      std::uint64_t offset, size, address;
    };
    std::vector<Segment> segments;
    std::vector<Function> functions;  // by begin
  };
  static File read(const std::string& path);

  std::vector<Mapping> mappings_;
  std::map<std::string, File> files_;
};

}  // namespace ananke
