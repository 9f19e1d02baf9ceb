// Compiled into every plugin by ananke_plugin(): the ELF note .note.ananke, read from the file before it is loaded.
// Its content is a serialized PluginNote (proto/ananke/plugin.proto), assembled field by field from the same compile
// definitions as the descriptor, so that the two cannot disagree, and from this build's own fingerprint.
#include "runtime/plugin/fingerprint.h"

// One length-delimited protobuf field: tag byte, length, content. Field numbers are those of PluginNote.
#define NOTE_TEXT(number, text) ".byte (" #number " << 3) | 2\n .uleb128 12f - 11f\n 11: .ascii \"" text "\"\n 12:\n"
#define NOTE_FILE(number, path) ".byte (" #number " << 3) | 2\n .uleb128 12f - 11f\n 11: .incbin \"" path "\"\n 12:\n"

asm(".pushsection .note.ananke, \"a\", @note\n"
    ".balign 4\n"
    ".long 2f - 1f\n"  // namesz, with the final zero
    ".long 4f - 3f\n"  // descsz
    ".long 1\n"        // type: layout 1
    "1: .asciz \"ananke\"\n"
    "2: .balign 4\n"
    "3:\n" NOTE_TEXT(1, ANANKE_PLUGIN_ROLE) NOTE_TEXT(2, ANANKE_PLUGIN_NAME) NOTE_TEXT(3, ANANKE_PLUGIN_VERSION)
        NOTE_TEXT(4, ANANKE_PLUGIN_DESCRIPTION) NOTE_TEXT(5, ANANKE_FINGERPRINT) NOTE_TEXT(6, ANANKE_PLUGIN_MESSAGE)
#if defined(ANANKE_PLUGIN_FILES)
            NOTE_FILE(7, ANANKE_PLUGIN_FILES)
#endif
#if defined(ANANKE_PLUGIN_NEEDS)
                NOTE_TEXT(8, ANANKE_PLUGIN_NEEDS)
#endif
                "4: .balign 4\n"
                ".popsection\n");
