// Makes chosen file operations of this process fail or stand still: linked into a test, or preloaded into a command.
//
// Preloaded, ANANKE_FILE_FAULT="OPERATION ERRNO PART" tells: OPERATION is write, sync, close or rename, ERRNO a number
// (0: the operation never returns), PART what the file's path contains, or ends in
// where PART ends in '$' (of a rename: either path).
#pragma once

#include <string>

namespace ananke {

struct FileFault {
  std::string operation, part;
  int error = 0;
};

void set_file_fault(const FileFault& fault);  // replaces the one before
void clear_file_fault();
int file_faults();  // how often the one set last has struck

}  // namespace ananke
