# SPDX-License-Identifier: Apache-2.0
"""The P4_16 compiler: P4 for v1model in, one C file and P4Info out.

    driver        compile_file, compile_source, Program        cache         results of earlier compilations
    confined      a stranger's program, within limits
    preprocess    #include, #define (macros), #if              diagnostics   errors with the line of the source
                  (preprocess_if)                            source_text   a statement's source as one line
    device_config the text of a program, or JSON that has it

    ast (ast_expr  ast_stmt)  types                            the syntax tree and the types of P4
    lexer  cursor  parse_expr  parse_stmt  parse_block  parser text -> ast
    resolve  consteval  check_convert                          ast -> ast with types; implicit casts, constants folded
      check_operator  check_expr  check_call
      check_stmt  check_table  check
    architecture                                           the externs and types of v1model are ours
    objects  ir  program  stages                               the lowered program and its representation
    lower_base  lower_expr  lower_call  lower_stmt             typed ast -> ir: side effects ordered, calls inlined,
      elaborate  lower_parser  lower_extern  lower               instances and tables made, states turned into labels
    c_text  wire_values  cell_reads                            ir -> C, for runtime/softswitch.h, wide.h and wire.h;
      emit_scalar  emit_wide  wire_loops  emit_wire            wide values are shared bytes or limbs
      emit_packet  emit_extern  emit_stmt  emit_trace  emit_c
    trace_sites                                                ir -> what the packet trace's numbers mean
    p4info_ids  p4info_notes  p4info_order  p4info             ir -> P4Info with p4c's ids
      p4info_files                                           P4Info -> files in p4c's formats
    bmv2_json                                                  ir -> BMv2's JSON, as far as control planes read it

Each row builds on the one above: the classes of a row inherit from left to right.
"""
